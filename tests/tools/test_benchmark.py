"""The programs of the benchmark, their sizes, and the parts of their work."""

import dataclasses
import functools
import types

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import sessions
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import breakdown
from synthesizer_mtf.tools.benchmark import model

CONFIG = model.Configuration(
    inputs=12, targets=6, batch=2, decode_batch=3, num_layers=1, d_model=8, num_heads=2,
    d_kv=4, d_ff=16, vocabulary=64)
# A row for each mixture is a notation, whose decoding other tests compare with NumPy.
BUILT = [name for name in attentions.ROWS if not set(name.split("+")) <= (
    {*notation.SYNTHESIZING_FUNCTIONS} - {"Pattern"}) or name in ("V", "R+V")]


@pytest.fixture(autouse=True)
def small_graphs(monkeypatch):
  """Runs graphs as they are; to optimize them takes longer."""
  monkeypatch.setitem(model._SESSIONS, "float32", sessions.config)


@functools.cache
def decoded(name):
  """A row's classes of attention, decoded ids and number of parameters."""
  program = model.build(attentions.find_row(name), CONFIG, "decode")
  ids = program.run()
  program.close()
  return program.attention, ids, program.sizes["parameters"]


@pytest.fixture(scope="module", name="programs")
def fixture_programs():
  """Programs of training steps of some rows, which do not run."""
  programs = {name: model.build(attentions.find_row(name), CONFIG, "train")
              for name in ("SelfAttention", "V", "floor")}
  yield programs
  for program in programs.values():
    program.close()


@pytest.mark.parametrize("name", BUILT)
def test_a_row_decodes_with_the_attention_that_it_names(name):
  attention, ids, _ = decoded(name)
  assert ids.shape == (3, 6)
  assert not np.any(ids == 1)  # Decoding never ends early.
  self_attention = name if name in notation.LAYERS else {
      "ours": "SyntheticAttention", "authors": "Synthesizer",
      "floor": "ValuesOnly"}.get(attentions.find_row(name).family, name.split(":")[0])
  assert attention == ([name, "SelfAttention"] if name in attentions.ENCODER_ONLY
                       else [self_attention] * 2)


def test_every_synthesizing_function_is_a_row_and_so_is_every_mixture():
  assert set(notation.SYNTHESIZING_FUNCTIONS) < set(attentions.ROWS)
  row = attentions.find_row("Fix+FD")
  assert row.family == "ours"
  assert row.bindings(9, 5) == [
      f"{stack}/{binding}" for stack, length in (("encoder", 9), ("decoder", 5))
      for binding in ("synthesizer_stack.attention = 'Fix+FD'",
                      f"FixedRandomLogits.max_length = {length}",
                      f"FactorizedDenseLogits.max_length = {length}")]


def test_convolutions_have_the_parameters_of_stock_ones():
  for ours, stock in (("LightConv", "LocalConvAttnBlock:lightweight"),
                      ("DyConv", "LocalConvAttnBlock:dynamic")):
    assert decoded(ours)[2] == decoded(stock)[2]


@pytest.mark.slow
def test_the_relative_bias_replaces_position_embeddings():
  config = dataclasses.replace(CONFIG, relative_bias=True)
  for name in ("SelfAttention", "R+V", "SparseStrided", "Synthesizer:random"):
    program = model.build(attentions.find_row(name), config, "eval")
    program.close()
    # A table of 32 distances and 2 heads in each stack; 12 positions.
    assert program.sizes["parameters"] - decoded(name)[2] == 2 * 32 * 2 - 12 * 8, name


@pytest.mark.slow
@pytest.mark.parametrize("name, projections, products", [
    ("V", 4, 2), ("R", 2, 1), ("floor", 2, 0)])
def test_parameters_and_multiply_adds_are_those_of_the_formulas(
    name, projections, products):
  # Large enough that norms, masks and dropout are less than 3% of the work.
  c = dataclasses.replace(CONFIG, inputs=56, targets=40, d_model=104, d_kv=48, d_ff=160,
                          vocabulary=128)
  program = model.build(attentions.find_row(name), c, "train")
  program.close()
  projection = c.d_model * c.num_heads * c.d_kv
  n, t, heads = c.inputs, c.targets, c.num_heads * c.d_kv
  forward = c.batch * (
      (n + t) * (projections * projection + 2 * c.d_model * c.d_ff) +
      (n ** 2 + t ** 2) * products * heads +
      2 * (n + t) * projection + 2 * n * t * heads +  # Cross-attention.
      t * c.d_model * c.vocabulary)
  # Each product has two gradients.
  assert 1 <= program.sizes["multiply_adds"] / (3 * forward) < 1.03
  tables = c.num_heads * (n ** 2 + t ** 2) if name == "R" else 0
  assert program.sizes["parameters"] == (
      (2 * projections + 4) * projection + 4 * c.d_model * c.d_ff + tables +
      (c.vocabulary + n + 7) * c.d_model)  # Tokens, positions, norms.


def test_strides_of_the_sparse_rows_balance_the_two_parts_of_their_cost():
  fixed, strided = [
      " ".join(attentions.find_row(name).bindings(4096, 128))
      for name in ("SparseFixed", "SparseStrided")]
  assert "encoder/SparseStrided.stride = 64" in strided
  assert "decoder/SparseFixed.stride = 32" in fixed
  assert "encoder/SparseFixed.columns = 8" in fixed


def test_each_row_is_there_in_each_precision(monkeypatch):
  rows = attentions.in_precisions(
      [attentions.find_row("V"), attentions.Row("X in int8", "x", precision="int8")],
      ["float32", "bfloat16"])
  assert [(row.name, row.precision) for row in rows] == [
      ("V", "float32"), ("V in bfloat16", "bfloat16"), ("X in int8", "int8")]
  assert attentions.find_row("V in bfloat16").bindings(9, 5) == rows[0].bindings(9, 5)
  monkeypatch.setattr(attentions.mixed_precision, "has_products", lambda: False)
  assert rows[0].obstacle(9, 5) is None
  assert rows[1].obstacle(9, 5) == "this processor has no products in bfloat16"


NODES = [
    ("V", "encoder/lookup/gradients/lookup_grad/parallel/UnsortedSegmentSum",
     "embedding"),
    ("V", "decoder/cross_entropy/parallel/Softmax", "logits and loss"),
    ("V", "adafactor_3/parallel/Sqrt", "optimizer"),
    ("V", "assign_7/parallel/AssignSub", "optimizer"),
    ("V", "decoder/block_000/layer_000/SyntheticAttention/einsum_3/gradients/einsum/"
     "parallel/einsum/Einsum", "self-attention"),
    ("V", "decoder/block_000/layer_001/EncDecAttention/slicewise/parallel/Softmax",
     "cross-attention"),
    ("V", "encoder/block_000/layer_001/DenseReluDense/wi/einsum/parallel/einsum/Einsum",
     "feed-forward"),
    ("V", "encoder/block_000/layer_001/dropout/random/parallel/RandomUniform", "rest"),
    ("SelfAttention", "encoder/one_hot/parallel/one_hot", "embedding"),
    ("SelfAttention", "decoder/one_hot_1/parallel/one_hot", "logits and loss"),
    ("SelfAttention", "shared/embedding/adafactor/square/parallel/Square",
     "optimizer"),
    ("V", "encoder/rms_norm/square/parallel/Square", "rest")]


@pytest.mark.slow
def test_names_tell_the_part_of_a_step(programs):
  for name, node, part in NODES:
    program = programs[name]
    made = {op.name for op in program.operations} | {"adafactor_3", "assign_7"}
    assert any(node.startswith(f"{op}/") for op in made), node
    assert breakdown.part(node, program.parts) == part, node


@pytest.mark.slow
def test_the_rest_has_no_product_with_a_matrix(programs):
  for program in programs.values():
    rest = [op for op in program.operations if isinstance(op, mtf.ops.EinsumOperation)
            and breakdown.part(f"{op.name}/parallel/Einsum", program.parts) == "rest"]
    assert rest  # The scales of norms.
    assert not [i for op in rest for i in op.inputs
                if isinstance(i.operation, mtf.Variable) and i.shape.ndims > 1]


def test_simultaneous_operations_share_their_time_and_pauses_are_rest():
  def node(name, start, end):
    return types.SimpleNamespace(node_name=f"encoder/block_000/layer_000/{name}/x",
                                 all_start_micros=1000, op_start_rel_micros=start,
                                 op_end_rel_micros=end)

  stats = types.SimpleNamespace(dev_stats=[types.SimpleNamespace(node_stats=[
      node("SelfAttention", 0, 10), node("DenseReluDense", 6, 12),
      node("DenseReluDense", 6, 8), node("EncDecAttention", 20, 25)])])
  assert breakdown.seconds(stats, {}) == pytest.approx({
      "self-attention": 6e-6 + 2e-6 / 3 + 1e-6,
      "feed-forward": 4e-6 / 3 + 1e-6 + 2e-6,
      "cross-attention": 5e-6, "rest": 8e-6,
      "embedding": 0, "logits and loss": 0, "optimizer": 0})
