"""Products in bfloat16 on CPUs that have them, and float32 everywhere else."""

import dataclasses

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import cases
from support import harness
from support import sessions
from support.examples import PADDED
from support.examples import tokens
from synthesizer_mtf import gin_files
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import model
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

SIZES = model.Configuration(
    inputs=24, targets=16, batch=3, decode_batch=2, num_layers=1, d_model=20,
    num_heads=2, d_kv=6, d_ff=30, vocabulary=70, dropout_rate=0.)
# T5's command binds this without a TPU, after all gin files.
T5S = "utils.get_variable_dtype.activation_dtype = 'float32'"
OURS = "synthesizer_precision.products = 'bfloat16'"
PRODUCTS = {"Einsum", "BatchMatMulV2"}
SESSION = tf.Session


@pytest.fixture
def processor(tmp_path, monkeypatch):
  """Makes the processor have these flags in addition to old ones."""
  path = tmp_path / "cpuinfo"
  monkeypatch.setattr(mixed_precision, "_PROCESSOR", str(path))
  return lambda flags: path.write_text(
      f"processor\t: 0\nflags\t\t: fpu avx2 {flags}\nbugs\t\t:\n")


def test_linux_says_what_a_processor_has(processor):
  assert not mixed_precision.has_products()  # Another system has no such file.
  for flags, has in (("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True),
                     ("avx512f", False)):
    processor(flags)
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


@pytest.mark.parametrize("bindings, warns", [
    (["utils.get_variable_dtype.activation_dtype = 'bfloat16'"], True),
    (["utils.get_variable_dtype.activation_dtype = 'bfloat16'", OURS], False),
    ([], False),  # Mesh's defaults bind bfloat16.
])
def test_bfloat16_activations_that_t5_replaces_are_warned_of(
    bindings, warns, monkeypatch):
  told = []
  monkeypatch.setattr(mixed_precision, "_once", lambda log, text: told.append(text))
  gin_files.parse([], bindings)
  gin_files.bind({"utils.get_variable_dtype.activation_dtype": "float32"})
  mixed_precision.warn_of_lost_activations()
  assert bool(told) == warns
  assert all("mixed_precision.gin asks for bfloat16" in text for text in told)


def test_an_unknown_precision_is_an_error():
  with pytest.raises(ValueError, match="`synthesizer_precision.products` is 'half' "
                     "but must be \"float32\" or \"bfloat16\""):
    mixed_precision.products("half")


def test_variables_that_are_bound_to_bfloat16_are_warned_of_once(monkeypatch):
  told = []
  monkeypatch.setattr(mixed_precision.logging, "warning", told.append)
  gin_files.parse([], ["utils.get_variable_dtype.slice_dtype = 'float32'"])
  mixed_precision.warn_of_rounded_variables()
  assert not told
  gin_files.parse([], [f"utils.get_variable_dtype.{name}_dtype = 'bfloat16'"
                       for name in ("slice", "master")])
  for _ in range(2):
    mixed_precision.warn_of_rounded_variables()
  trained, saved = sorted(told, key=lambda text: "master" in text)
  assert "updates below 1/256 of a value are lost; bind it to 'float32'" in trained
  assert "checkpoints keep 8 bits of each variable" in saved


def test_a_list_of_operations_in_the_environment_is_kept(monkeypatch):
  name = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_REMOVE"
  monkeypatch.setenv(name, "Softmax")
  mixed_precision.session_config()
  assert mixed_precision.os.environ[name] == "Softmax"


def rounded_graph(graph):
  """A copy in which products, and what is between them, round as in bfloat16.

  TensorFlow's rewriter does nothing on a processor without such products. The copy
  casts operands and results to bfloat16 and back, and multiplies in float32, as oneDNN
  does. So each processor computes the numbers of one that has them, but for a softmax.
  """
  rounded = tf.GraphDef()
  rounded.CopyFrom(graph.as_graph_def())

  def cast(source, name):
    for suffix, types in (("/short", (tf.float32, tf.bfloat16)),
                          ("", (tf.bfloat16, tf.float32))):
      node = rounded.node.add(op="Cast", name=name + suffix, input=[source])
      node.attr["SrcT"].type, node.attr["DstT"].type = (
          part.as_datatype_enum for part in types)
      source = node.name
    return source

  for node in list(rounded.node):
    if node.op in PRODUCTS.union(mixed_precision.OPERATIONS) and (
        node.attr["T"].type == tf.float32):
      name, node.name = node.name, node.name + "/exact"
      for i, source in enumerate(node.input):
        if not source.startswith("^"):
          node.input[i] = cast(source, f"{name}/operand_{i}")
      cast(node.name, name)
  copy = tf.Graph()
  with copy.as_default():
    tf.import_graph_def(rounded, name="")
  return copy


class Session:
  """A session of TensorFlow, and beside it one of the rounded copy of its graph.

  `rounded` has what the other session returns for each call of `run`.
  """

  def __init__(self, target="", graph=None, config=None):
    self.graph, self.rounded, self._copy = graph or tf.get_default_graph(), [], None
    self._session = SESSION(graph=self.graph, config=config)

  def run(self, fetches, feed_dict=None, **traced):
    if not traced:
      self._copy = self._copy or SESSION(
          graph=rounded_graph(self.graph), config=sessions.config())
      self.rounded.append(self._copy.run(
          tf.nest.map_structure(lambda tensor: tensor.name, fetches),
          {tensor.name: value for tensor, value in (feed_dict or {}).items()}))
    return self._session.run(fetches, feed_dict, **traced)

  def close(self):
    self._session.close()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    """Leaves the end to garbage collection, as the sessions of programs do."""


def nodes(program):
  """The operations that TensorFlow runs, after its rewriter."""
  traced = tf.RunMetadata()
  program.session.run(program._fetch, run_metadata=traced, options=tf.RunOptions(
      output_partition_graphs=True))
  return [node for graph in traced.partition_graphs for node in graph.node]


def in_bfloat16(program):
  """The operations that compute in bfloat16: pairs of a name and a type."""
  return {(node.name, node.op.removeprefix("_Mkl")) for node in nodes(program)
          if node.attr["T"].type == tf.bfloat16}


@pytest.mark.slow
@pytest.mark.parametrize("notation, packed, relative_bias", [
    ("R+V", 0, False), ("R+V", 2, True), ("LightConv", 0, False)])
def test_losses_agree_and_only_what_may_be_is_in_bfloat16(
    notation, packed, relative_bias, monkeypatch):
  has = mixed_precision.has_products()
  sizes = model.Configuration(**{
      **vars(SIZES), "packed": packed, "relative_bias": relative_bias})
  exact, mixed = attentions.in_precisions(
      [attentions.find_row(notation)], ["float32", "bfloat16"])
  monkeypatch.setitem(model._SESSIONS, "float32", sessions.config)
  exact = model.build(exact, sizes, "train")
  monkeypatch.setattr(tf, "Session", Session)
  mixed = model.build(mixed, sizes, "train")
  # The losses before and after a step; the result of a product is rounded to 8 bits.
  expected = [exact.run(), exact.run()]
  np.testing.assert_allclose([mixed.run(), mixed.run()], expected, rtol=2 ** -8)
  rounded = mixed.session._session.rounded[-2:]
  np.testing.assert_allclose(rounded, expected, rtol=2 ** -8)
  assert (np.array(rounded) != expected).all()
  operations = in_bfloat16(mixed)
  cast = {op for _, op in operations}
  assert cast & PRODUCTS if has else not cast
  assert ("MulNoNan" in cast) == has
  assert not cast & {"MatMul", *mixed_precision._LISTS["INFERLIST_REMOVE"].split(",")}
  if notation == "R+V":  # Tables are added in bfloat16, but relative biases are not.
    assert any(op == "Add" and "encoder/" in name for name, op in operations) == (
        has and not relative_bias)
  else:
    assert not in_bfloat16(exact)


@pytest.mark.parametrize("texts", [1, 3])
def test_decoding_several_texts_multiplies_in_bfloat16_if_the_processor_does(texts):
  row, = attentions.in_precisions([attentions.find_row("V")], ["bfloat16"])
  program = model.build(
      row, dataclasses.replace(SIZES, decode_batch=texts, beam=1), "decode")
  cast = {op for name, op in in_bfloat16(program) if "/while/" in name}
  assert ("MatMul" in cast) == (texts > 1 and mixed_precision.has_products())


@pytest.mark.skipif(not mixed_precision.has_products(), reason="nothing is rewritten")
@pytest.mark.parametrize("beam, limit", [(1, 0), (1, 2 ** 19), (3, 0)])
def test_no_decoding_step_casts_a_cache(beam, limit, monkeypatch):
  monkeypatch.setattr(loops, "_FEW_MULTIPLICATIONS", limit)  # 0 as with many texts.
  row, = attentions.in_precisions([attentions.find_row("V")], ["bfloat16"])
  program = model.build(
      row, dataclasses.replace(SIZES, decode_batch=3, beam=beam), "decode")
  caches = "/write", "/Reshape"  # What TensorFlow casts names the cast.
  of_steps = [node.name for node in nodes(program)
              if node.op == "Cast" and "/while/" in node.name]
  assert of_steps
  assert not [name for name in of_steps if any(cache in name for cache in caches)]


# bfloat16 has 8 bits. Rounding changes a value x by at most x * ULP / 2.
ULP = 2 ** -7


def rounded_products(monkeypatch):
  """Makes the products of the formulas round as those of the layers do."""
  exact = np.einsum

  def rounded(value):
    return np.asarray(value).astype(tf.bfloat16.as_numpy_dtype).astype(np.float64)

  monkeypatch.setattr(np, "einsum", lambda names, *operands: rounded(
      exact(names, *map(rounded, operands))))


@pytest.mark.parametrize("notation", [
    "V", "R", "FR", "T", "Pattern", "FR+D+V", "Fix+FD+V"])
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
  monkeypatch.setattr(mixed_precision, "is_marked", lambda: True)
  made = []
  monkeypatch.setattr(harness.sessions, "start", lambda: made.append(
      Session(config=mixed_precision.session_config())) or made[0])
  y, graph, grads = harness.forward(
      cases.make_layer(notation), x, False, PADDED, gradients=True,
      loss_weights=weights)
  rounded_y, *rounded_grads = made[0].rounded[-1]

  def output(**change):
    return cases.attention(
        notation, {**graph.variables, **change}, x, PADDED, False, cases.HEADS)

  for (name, grad), rounded_grad in zip(grads.items(), rounded_grads):
    direction = np.random.RandomState(3).randn(*grad.shape)
    values, step = graph.variables[name], 1e-5
    difference = ((output(**{name: values + step * direction}) - output(
        **{name: values - step * direction})) * weights).sum() / (2 * step)
    for gradient in (grad, rounded_grad):
      assert abs((gradient * direction).sum() - difference) < (
          6 * ULP * np.linalg.norm(gradient)), name
  exact = output()
  rounded_products(monkeypatch)
  expected, scale, seen = output(), np.abs(exact).max(), PADDED > 0
  for output in (y, rounded_y):
    off = (output - expected) * seen[..., None]
    assert np.abs(off).max() < 2 * ULP * scale
    assert abs((off * weights).sum()) < 2 * ULP * np.abs(exact * weights).sum()
  # float32 alone is also within these bounds.
  assert np.abs(rounded_y - exact)[seen].max() > ULP / 16 * scale
  assert np.median(np.abs(rounded_y - expected)[seen]) < ULP / 16 * scale
  assert not mixed_precision.has_products() or (
      np.abs(y - exact)[seen].max() > ULP / 16 * scale)
