"""Products in bfloat16 on CPUs that have them, and float32 everywhere else."""

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import model
from synthesizer_mtf.training import mixed_precision
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

SIZES = model.Configuration(
    inputs=24, targets=16, batch=3, decode_batch=2, num_layers=1, d_model=20,
    num_heads=2, d_kv=6, d_ff=30, vocabulary=70, dropout_rate=0.)
# As T5's command binds it without a TPU, after all gin files.
T5S = "utils.get_variable_dtype.activation_dtype = 'float32'"
OURS = "synthesizer_precision.products = 'bfloat16'"
FLAGS = "processor\t: 0\nflags\t\t: fpu avx2 {}\nbugs\t\t:\n"
PRODUCTS = {"Einsum", "BatchMatMulV2"}


@pytest.fixture
def processor(tmp_path, monkeypatch):
  """Lets the processor have these flags, on top of old ones."""
  def have(flags):
    path = tmp_path / "cpuinfo"
    path.write_text(FLAGS.format(flags))
    monkeypatch.setattr(mixed_precision, "_PROCESSOR", str(path))
    mixed_precision._say.cache_clear()

  return have


@pytest.mark.parametrize("flags, has", [
    ("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx512f", False)])
def test_linux_tells_what_a_processor_has(processor, flags, has):
  processor(flags)
  assert mixed_precision.has_products() == has


def test_a_system_that_does_not_tell_has_none(tmp_path, monkeypatch):
  monkeypatch.setattr(mixed_precision, "_PROCESSOR", str(tmp_path / "none"))
  assert not mixed_precision.has_products()


@pytest.mark.parametrize("bindings, flags, rewrites, sentence", [
    ([T5S], "", False, None),
    ([T5S], "avx512_bf16", False, "--gin_file=mixed_precision.gin asks for it"),
    ([T5S, OURS], "", False, "no products in it: all is computed in float32"),
    ([T5S, OURS], "amx_bf16", True, "Products are computed in bfloat16, all else in"),
    ([], "amx_bf16", True, "Products are computed in bfloat16, all else in"),
], ids=["neither", "only has", "only asks", "both", "by T5's activation_dtype"])
def test_what_is_asked_for_and_what_there_is_decide_and_are_told_once(
    processor, bindings, flags, rewrites, sentence, monkeypatch):
  told = []
  monkeypatch.setattr(mixed_precision.logging, "info", told.append)
  processor(flags)
  gin_files.parse([], bindings)
  for _ in range(2):
    _, config = mixed_precision.on_cpus(lambda *args: None)
  on = config and (
      config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16)
  assert on == (rewriter_config_pb2.RewriterConfig.ON if rewrites else None)
  assert len(told) == bool(sentence) and all(sentence in text for text in told)


def test_activations_are_float32_and_the_configuration_keeps_what_was_asked_for(
    processor):
  processor("")
  gin_files.parse(["mixed_precision.gin"], [])
  model_fn, _ = mixed_precision.on_cpus(
      lambda *args: utils.get_variable_dtype().activation_dtype)
  assert model_fn({}, None, "train", {}, None) == tf.float32
  assert utils.get_variable_dtype().activation_dtype == tf.bfloat16
  assert "get_variable_dtype.activation_dtype = 'bfloat16'" in (
      gin.operative_config_str())


def test_a_precision_that_is_none_is_an_error():
  with pytest.raises(ValueError, match="`synthesizer_precision.products` is 'half' "
                     "but must be \"float32\" or \"bfloat16\""):
    mixed_precision.products("half")


def test_what_the_environment_says_of_operations_holds(monkeypatch):
  name = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_REMOVE"
  monkeypatch.setenv(name, "Softmax")
  mixed_precision.session_config()
  assert mixed_precision.os.environ[name] == "Softmax"


def losses(program):
  """The loss before and after a step of training."""
  return np.array([program.run(), program.run()])


def in_bfloat16(program):
  """The types of the operations that compute in bfloat16 when it runs."""
  traced = tf.RunMetadata()
  program._session.run(program._fetch, run_metadata=traced, options=tf.RunOptions(
      output_partition_graphs=True))
  return {node.op.removeprefix("_Mkl") for graph in traced.partition_graphs
          for node in graph.node if node.attr["T"].type == tf.bfloat16}


@pytest.mark.parametrize("notation, packed", [("V", 0), ("R+V", 2), ("LightConv", 0)])
def test_the_products_are_in_bfloat16_where_there_are_such_and_the_losses_agree(
    notation, packed):
  has = mixed_precision.has_products()
  sizes = model.Configuration(**{**vars(SIZES), "packed": packed})
  exact, mixed = (model.build(row, sizes, "train") for row in (
      attentions.in_precisions([attentions.find_row(notation)],
                               ["float32", "bfloat16"])))
  # A product's result is rounded to 8 bits.
  np.testing.assert_allclose(losses(mixed), losses(exact), rtol=2 ** -8)
  found = in_bfloat16(mixed)
  assert found & PRODUCTS if has else not found
  assert not found & {"MatMul", *mixed_precision._LISTS["INFERLIST_REMOVE"].split(",")}
  assert not in_bfloat16(exact)
