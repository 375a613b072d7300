"""Products in bfloat16 on CPUs that have them, and float32 everywhere else."""

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import cases
from support import harness
from support.examples import every_notation
from support.examples import PADDED
from support.examples import tokens
from synthesizer_mtf import gin_files
from synthesizer_mtf.ops import between_products
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import model
from synthesizer_mtf.training import mixed_precision
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

SIZES = model.Configuration(
    inputs=24, targets=16, batch=3, decode_batch=2, num_layers=1, d_model=20,
    num_heads=2, d_kv=6, d_ff=30, vocabulary=70, dropout_rate=0.)
# T5's command binds this without a TPU, after all gin files.
T5S = "utils.get_variable_dtype.activation_dtype = 'float32'"
OURS = "synthesizer_precision.products = 'bfloat16'"
FLAGS = "processor\t: 0\nflags\t\t: fpu avx2 {}\nbugs\t\t:\n"
PRODUCTS = {"Einsum", "BatchMatMulV2"}


@pytest.fixture
def processor(tmp_path, monkeypatch):
  """Makes the processor have these flags in addition to old ones."""
  def have(flags):
    path = tmp_path / "cpuinfo"
    path.write_text(FLAGS.format(flags))
    monkeypatch.setattr(mixed_precision, "_PROCESSOR", str(path))

  return have


@pytest.mark.parametrize("flags, has", [
    ("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx512f", False),
    (None, False)])
def test_only_linux_says_what_a_processor_has(
    processor, flags, has, monkeypatch):
  processor(flags)
  if flags is None:
    monkeypatch.setattr(mixed_precision, "_PROCESSOR", "/nowhere")
  assert mixed_precision.has_products() == has


@pytest.mark.parametrize("bindings, flags, rewrites, sentence", [
    ([T5S], "", False, None),
    ([T5S], "avx512_bf16", False, "--gin_file=mixed_precision.gin asks for it"),
    ([T5S, OURS], "", False, "no products in it: all is computed in float32"),
    ([T5S, OURS], "amx_bf16", True, "Products are computed in bfloat16, all else in"),
    ([], "amx_bf16", True, "Products are computed in bfloat16, all else in"),
], ids=["neither", "only has", "only asks", "both", "by T5's activation_dtype"])
def test_gin_and_the_processor_decide_and_the_log_says_so_once(
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


def test_activations_are_float32_and_the_configuration_keeps_the_users_choice(
    processor):
  processor("")
  gin_files.parse(["mixed_precision.gin"], [])
  model_fn, _ = mixed_precision.on_cpus(
      lambda *args: utils.get_variable_dtype().activation_dtype)
  assert model_fn({}, None, "train", {}, None) == tf.float32
  assert utils.get_variable_dtype().activation_dtype == tf.bfloat16
  assert "get_variable_dtype.activation_dtype = 'bfloat16'" in (
      gin.operative_config_str())


def test_an_unknown_precision_is_an_error():
  with pytest.raises(ValueError, match="`synthesizer_precision.products` is 'half' "
                     "but must be \"float32\" or \"bfloat16\""):
    mixed_precision.products("half")


@pytest.mark.parametrize("bindings, sentence", [
    ([], None),
    (["utils.get_variable_dtype.slice_dtype = 'float32'"], None),
    (["utils.get_variable_dtype.slice_dtype = 'bfloat16'"],
     "updates below 1/256 of a value are lost; bind it to 'float32'"),
    (["utils.get_variable_dtype.master_dtype = 'bfloat16'"],
     "checkpoints keep 8 bits of each variable"),
])
def test_variables_that_are_bound_to_bfloat16_are_warned_of_once(
    bindings, sentence, monkeypatch):
  told = []
  monkeypatch.setattr(mixed_precision.logging, "warning", told.append)
  gin_files.parse([], bindings)
  for _ in range(2):
    mixed_precision.warn_of_rounded_variables()
  assert len(told) == bool(sentence) and all(sentence in text for text in told)


def test_a_list_of_operations_in_the_environment_is_kept(monkeypatch):
  name = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_REMOVE"
  monkeypatch.setenv(name, "Softmax")
  mixed_precision.session_config()
  assert mixed_precision.os.environ[name] == "Softmax"


def losses(program):
  """The loss before and after a step of training."""
  return np.array([program.run(), program.run()])


def in_bfloat16(program, where=""):
  """The types of operations that compute in bfloat16, with `where` in their names."""
  traced = tf.RunMetadata()
  program._session.run(program._fetch, run_metadata=traced, options=tf.RunOptions(
      output_partition_graphs=True))
  return {node.op.removeprefix("_Mkl") for graph in traced.partition_graphs
          for node in graph.node
          if node.attr["T"].type == tf.bfloat16 and where in node.name}


@pytest.mark.parametrize("notation, packed", [("V", 0), ("R+V", 2), ("LightConv", 0)])
def test_products_are_in_bfloat16_if_the_processor_has_them_and_losses_agree(
    notation, packed):
  has = mixed_precision.has_products()
  sizes = model.Configuration(**{**vars(SIZES), "packed": packed})
  exact, mixed = (model.build(row, sizes, "train") for row in (
      attentions.in_precisions([attentions.find_row(notation)],
                               ["float32", "bfloat16"])))
  # The result of a product is rounded to 8 bits.
  np.testing.assert_allclose(losses(mixed), losses(exact), rtol=2 ** -8)
  found = in_bfloat16(mixed)
  assert found & PRODUCTS if has else not found
  assert ("MulNoNan" in found) == has
  assert not found & {"MatMul", *mixed_precision._LISTS["INFERLIST_REMOVE"].split(",")}
  assert not in_bfloat16(exact)


@pytest.mark.parametrize("relative_bias", [False, True])
def test_tables_are_added_in_bfloat16_but_relative_biases_in_float32(relative_bias):
  row, = attentions.in_precisions([attentions.find_row("R+V")], ["bfloat16"])
  sizes = model.Configuration(**{**vars(SIZES), "relative_bias": relative_bias})
  found = in_bfloat16(model.build(row, sizes, "train"), "encoder/")
  assert ("Add" in found) == (mixed_precision.has_products() and not relative_bias)


def test_decoding_multiplies_in_bfloat16_if_the_processor_has_such_products():
  row, = attentions.in_precisions([attentions.find_row("V")], ["bfloat16"])
  program = model.build(row, SIZES, "decode")
  assert bool(PRODUCTS & in_bfloat16(program, "/while/")) == (
      mixed_precision.has_products())


# bfloat16 has 8 bits. Rounding changes a value x by at most x * ULP / 2.
ULP = 2 ** -7


def rounded_products(monkeypatch):
  """Makes the products of the formulas round as those of the layers do."""
  exact = np.einsum

  def rounded(value):
    return np.asarray(value).astype(tf.bfloat16.as_numpy_dtype).astype(np.float64)

  monkeypatch.setattr(np, "einsum", lambda names, *operands: rounded(
      exact(names, *map(rounded, operands))))


@every_notation
def test_outputs_losses_and_gradients_agree_with_the_formulas_to_8_bits(
    notation, monkeypatch):
  """Compares output and loss with rounded formulas, and gradients with exact ones.

  The formulas round where the layers do. If a sum lies about midway between two values,
  float32 and float64 may round it to different ones, one ULP apart. Weights and means
  are then rounded again. So the bound is two ULPs of the largest output. A gradient
  passes four products, one after the other. Each rounds its two operands and its result
  by half an ULP. So the bound is six ULPs of the length of the gradient.
  """
  x = tokens()
  weights = np.arange(x.size).reshape(x.shape) / x.size * (PADDED > 0)[..., None]
  monkeypatch.setattr(between_products, "is_marked", lambda: True)
  monkeypatch.setattr(harness.sessions, "start", lambda: tf.Session(
      config=mixed_precision.session_config()))
  y, graph, grads = harness.forward(
      cases.make_layer(notation), x, False, PADDED, gradients=True,
      loss_weights=weights)

  def output(**change):
    return cases.attention(
        notation, {**graph.variables, **change}, x, PADDED, False, cases.HEADS)

  for name, grad in grads.items():
    direction = np.random.RandomState(3).randn(*grad.shape)
    values, step = graph.variables[name], 1e-5
    difference = ((output(**{name: values + step * direction}) - output(
        **{name: values - step * direction})) * weights).sum() / (2 * step)
    assert abs((grad * direction).sum() - difference) < (
        6 * ULP * np.linalg.norm(grad)), name
  exact = output()
  rounded_products(monkeypatch)
  off, scale = (y - output()) * (PADDED > 0)[..., None], np.abs(exact).max()
  assert np.abs(off).max() < 2 * ULP * scale
  assert abs((off * weights).sum()) < 2 * ULP * np.abs(exact * weights).sum()
  if mixed_precision.has_products():  # Otherwise float32 is also within the bound.
    assert np.abs(y - exact)[PADDED > 0].max() > ULP / 16 * scale
