"""The layer's own parts: masks, dropout, dtypes, meshes, relative position bias."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import cases
from support import examples
from support import harness
from support import reference
from support.examples import PADDED
from support.examples import tokens
from synthesizer_mtf.ops import attend
import tensorflow.compat.v1 as tf


@pytest.mark.parametrize("notation, name", [
    ("R", "R"), ("Fix", "R"), ("FR", "R2"), ("D", "W2"), ("R+V", "R"),
    ("R+D", "R"), ("FR+V", "R2")])
def test_padding_never_matters_even_if_its_logits_are_50_larger(notation, name):
  x = tokens()
  y, graph = harness.forward(cases.make_layer(notation), x, False, PADDED)
  table = graph.variables[name].copy()
  columns = {"R": np.s_[..., 4:7], "R2": np.s_[:, 4:7], "W2": np.s_[..., 4:7]}
  larger = table.copy()
  larger[columns[name]] += 50 if name == "R" else 20 * np.sign(
      table[columns[name]])
  z, _ = harness.forward(cases.make_layer(notation), x, False, PADDED,
                         values={name: larger})
  np.testing.assert_allclose(z[1, :4], y[1, :4], atol=1e-5)


@pytest.mark.parametrize("notation, decoder", [
    (notation, bool(i % 2)) for i, notation in enumerate(cases.NOTATIONS)])
def test_an_example_of_padding_alone_is_finite_with_finite_gradients(
    notation, decoder):
  ids = np.array([[1] * 7, [0] * 7])
  y, _, grads = harness.forward(
      cases.make_layer(notation), tokens(), decoder, ids, gradients=True)
  assert np.isfinite(y).all()
  assert all(np.isfinite(grad).all() for grad in grads.values())


def stock_mask(context):
  """The mask that stock SelfAttention adds to its logits, as a bias."""
  layer = transformer_layers.SelfAttention(num_heads=1, key_value_size=5)
  positions = mtf.range(context.mesh, context.length_dim, tf.int32)
  return layer.compute_bias(
      context, mtf.rename_dimension(positions, "length", "memory_length"),
      positions, [], None)


KINDS = ["prefix", "packed prefix", "subsequence"]


def keys_of(kind):
  """The arguments of a context, the ids that it has or means, and the mask."""
  if kind.endswith("prefix"):
    packed = kind.startswith("packed")
    prefix = np.array([[1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0]])
    priority = np.arange(7) * (1 - prefix)
    more = {"read_priority": priority, "write_priority": priority}
    ids = expected_ids = np.array(
        [[1] * 7, [1, 1, 1, 1] + [1 + packed] * 3])
    mask = (priority[:, :, None] >= priority[:, None, :]) & (
        ids[:, :, None] == ids[:, None, :])
  else:
    ids = np.array([[1] * 7, [1, 1, 1, 1, 2, 2, 2]])
    sub = np.array([[1, 1, 2, 2, 3, 3, 3], [1, 1, 2, 2, 3, 3, 0]])
    more = {"subsequence_id": sub}
    expected_ids = sub
    mask = reference.mask(sub, True)
  return more, ids, expected_ids, mask


@pytest.mark.parametrize("kind", KINDS)
def test_stock_self_attention_sees_these_keys(kind):
  more, ids, _, mask = keys_of(kind)
  graph = harness.LayerGraph(None, True, 2, 7)
  with graph.tf_graph.as_default():
    tensors = {k: graph.constant(v, graph.batch_dim, graph.length_dim)
               for k, v in dict(more, sequence_id=ids).items()}
    bias, = graph.run(stock_mask(graph.context(**tensors)))
  stock = np.broadcast_to(bias > -1e8, (2, 7, 7)) if bias.ndim == 3 else bias
  np.testing.assert_array_equal(np.sort(stock.ravel()), np.sort(mask.ravel()))


@pytest.mark.parametrize("notation, kind, tpu", [
    (notation, KINDS[(i + tpu) % 3], tpu) for i, notation in enumerate(cases.NOTATIONS)
    for tpu in (False, True)])
def test_a_query_sees_the_same_keys_as_in_stock_self_attention(notation, kind, tpu):
  x = tokens()
  more, ids, expected_ids, mask = keys_of(kind)
  y, graph = harness.forward(
      cases.make_layer(notation), x, True, ids, kind == "packed prefix",
      context=more, input_full_attention=kind.endswith("prefix"), tpu=tpu)
  p = {k: v.astype(np.float64) for k, v in graph.variables.items()}
  logits = cases.mixed_logits(notation, p, x, expected_ids, True, cases.HEADS)
  expected = reference.output(logits, p, x, mask, cases.HEADS)
  real = expected_ids > 0
  np.testing.assert_allclose(y[real], expected[real], atol=2e-5)


# test_meshes.py tests whole models, and the gradients of all notations.
MESHES = [(notation, "b:2,m:3") for notation in ("R", "Fix", "FD", "FR+D+V")] + [
    ("R", "b:2"), ("R", "m:3")]


@pytest.mark.slow
@pytest.mark.parametrize("notation, mesh_shape, ids, rows", [
    (*mesh, *examples.ROWS[row]) for i, mesh in enumerate(MESHES)
    for row in (("padded", "packed on TPUs"), ("packed", "padded on TPUs"))[i % 2]])
def test_output_and_gradients_are_the_same_on_any_mesh(
    notation, mesh_shape, ids, rows):
  layout = [rule for rule in ("batch:b", "heads:m")
            if rule[-1] in mesh_shape.replace(":2", "").replace(":3", "")]
  one = harness.forward(cases.make_layer(notation), tokens(), True, ids,
                        gradients=True, **rows)
  many = harness.forward(cases.make_layer(notation), tokens(), True, ids,
                         gradients=True, **rows,
                         mesh_shape=mesh_shape, layout=",".join(layout))
  np.testing.assert_allclose(many[0], one[0], atol=1e-5)
  for name, grad in one[2].items():
    np.testing.assert_allclose(many[2][name], grad, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("notation", ["R", "FR", "D", "FD", "R+V"])
def test_large_variables_are_split_over_heads(notation):
  graph = harness.LayerGraph(cases.make_layer(notation), False, 2, 7)
  with graph.tf_graph.as_default():
    d_model = mtf.Dimension("d_model", harness.D_MODEL)
    graph.call(graph.context(), graph.constant(
        tokens(), graph.batch_dim, graph.length_dim, d_model))
  for variable in graph.graph.all_variables:
    name = variable.name.split("/")[-1]
    assert name == "alpha" or "heads" in variable.shape.dimension_names, name


@examples.rows_in_turn(cases.NOTATIONS)
def test_bfloat16_stays_within_its_error_of_float32(notation, ids, rows):
  x = tokens()
  y, graph = harness.forward(cases.make_layer(notation), x, False, ids, **rows)
  z, _ = harness.forward(cases.make_layer(notation), x, False, ids, **rows,
                         activation="bfloat16", values=graph.variables)
  scale = np.abs(y).max()
  assert np.abs(z - y)[ids > 0].max() < 0.04 * scale


@pytest.mark.parametrize("notation", ["V", "R", "D", "FD", "FR+D+V"])
def test_logits_and_softmax_are_float32_with_bfloat16_activations(
    notation, monkeypatch):
  seen = []
  original = attend._sum

  def spy(tables):
    total = original(tables)
    seen.append(total.dtype)
    return total

  monkeypatch.setattr(attend, "_sum", spy)
  harness.forward(cases.make_layer(notation), tokens(), False, PADDED,
                  activation="bfloat16")
  assert seen and set(seen) == {tf.float32}


@pytest.mark.parametrize("notation, kind, decoder", [
    ("V", "bias", False), ("R", "bias_shared", True), ("FD", "bias", True),
    ("R+V", "bias_shared", False)])
def test_relative_bias_equals_that_of_stock_self_attention(notation, kind, decoder):
  x = tokens()
  y, graph = harness.forward(
      cases.make_layer(notation, relative_attention_type=kind), x, decoder,
      PADDED)
  p = graph.variables
  distance = np.arange(7)[None, :] - np.arange(7)[:, None]
  with tf.Graph().as_default(), tf.Session() as session:
    g = mtf.Graph()
    mesh = mtf.Mesh(g, "mesh")
    a, b = mtf.Dimension("a", 7), mtf.Dimension("b", 7)
    bucket = transformer_layers._relative_position_bucket(
        mtf.import_fully_replicated(mesh, tf.constant(distance, tf.int32), [a, b]),
        bidirectional=not decoder)
    lowering = mtf.Lowering(g, {mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
        "", "", [""])})
    bucket = session.run(lowering.export_to_tf_tensor(bucket))
  bias = p["relative_attention_bias"][:, bucket]
  logits = bias + cases.mixed_logits(notation, p, x, PADDED, decoder, 3)
  expected = reference.output(
      logits, p, x, reference.mask(PADDED, decoder), 3)
  np.testing.assert_allclose(y[PADDED > 0], expected[PADDED > 0], atol=2e-5)


@pytest.mark.parametrize("notation", ["V", "R"])
def test_dropout_drops_a_key_for_all_queries_alike(notation):
  layer = cases.make_layer(
      notation, num_heads=1, key_value_size=11, dropout_rate=0.5)
  eye = np.eye(11, dtype=np.float32)
  x = np.stack([eye[:7]] * 40)  # the output shows the weight of each key
  kept, graph = harness.forward(layer, x, False, values={"v": eye, "o": eye})
  y, _ = harness.forward(
      layer, x, False, mode="train", values=graph.variables)
  factor = y[..., :7] / kept[..., :7]
  np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1], factor.shape),
                             rtol=1e-4, atol=1e-4)
  assert set(factor.round(3).ravel()) == {0.0, 2.0}
  assert 0.3 < (factor == 0).mean() < 0.7


def test_packed_false_gives_the_results_of_unpacked_rows():
  x = tokens()
  promised, _ = harness.forward(
      cases.make_layer("R", packed=False), x, False, PADDED, packed=True)
  unpacked, _ = harness.forward(cases.make_layer("R"), x, False, PADDED)
  np.testing.assert_allclose(
      promised[PADDED > 0], unpacked[PADDED > 0], atol=1e-6)


def test_the_fast_paths_equal_the_plain_path():
  """Compares with softmax(logits + masks) times values, for random logits."""
  generator = np.random.RandomState(0)
  q, k, v = generator.randn(3, 2, 3, 7, 5).astype(np.float32)
  table = generator.randn(3, 7, 7).astype(np.float32)
  logits = np.einsum("bhik,bhjk->bhij", q, k) + table
  keys = PADDED > 0
  plain = np.einsum(
      "bhij,bhjk->bhik", cases.reference.softmax(
          np.where(keys[:, None, None], logits, -1e30)), v)
  shared = np.einsum(
      "bhij,bhjk->bhik", cases.reference.softmax(
          np.where(keys[:, None, None], table[None], -1e30)), v)
  graph = harness.LayerGraph(None, False, 2, 7)
  with graph.tf_graph.as_default():
    from synthesizer_mtf.context import attention_inputs
    from synthesizer_mtf.context import attention_mask
    from synthesizer_mtf.ops import logit_forms
    heads, d_kv = mtf.Dimension("heads", 3), mtf.Dimension("d_kv", 5)
    memory = mtf.Dimension("memory_length", 7)
    d_model = mtf.Dimension("d_model", harness.D_MODEL)
    b, n = graph.batch_dim, graph.length_dim
    ids = mtf.minimum(graph.constant(PADDED, b, n), 1)
    inputs = attention_inputs.AttentionInputs(
        graph.context(sequence_id=ids), graph.constant(tokens(), b, n, d_model),
        3, 5)
    mask = attention_mask.for_stack(inputs)
    values = graph.constant(v, b, heads, memory, d_kv)
    terms = [logit_forms.InnerProduct(graph.constant(q, b, heads, n, d_kv),
                               graph.constant(k, b, heads, memory, d_kv)),
             logit_forms.Table(graph.constant(table, heads, n, memory))]
    order = mtf.Shape([b, heads, n, d_kv])
    with_batch, without = graph.run(*[
        mtf.transpose(attend.attend(inputs, t, values, mask),
                      order) for t in (terms, terms[1:])])
  np.testing.assert_allclose(with_batch, plain, atol=2e-6)
  np.testing.assert_allclose(without, shared, atol=2e-6)
