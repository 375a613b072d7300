"""What only looks like something that the package knows stays Mesh TensorFlow's.

`tests/layers/` has the lookalikes of norms, feed-forward layers, self-attention and
cross-attention.
"""

import functools
import types

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from mesh_tensorflow.transformer import universal_transformer
import numpy as np
import pytest
from support import cases
from support import harness
from support import models
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import stack_cache
from synthesizer_mtf.fast import cross_entropy
from synthesizer_mtf.fast import lookup
from synthesizer_mtf.fast.decoding import decoder
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.t5 import embedding
from synthesizer_mtf.tools.hugging_face_bridge import trained
from synthesizer_mtf.trainer import optimizer
import tensorflow.compat.v1 as tf

D_MODEL = mtf.Dimension("d_model", 3)
VOCAB = mtf.Dimension("vocab", 5)
LENGTH = mtf.Dimension("length", 4)
IDS = np.array([[1, 4, 4, 0], [2, 1, 3, 3]])
GENERATOR = np.random.RandomState(0)


@pytest.fixture(name="graph")
def fixture_graph():
  graph = harness.LayerGraph(None, False, *IDS.shape, d_model=D_MODEL.size)
  with graph.tf_graph.as_default():
    yield graph


class OtherMinimum(mtf.MinMaxOperation):
  """The same constructor; only its lowering is another one."""

  def lower(self, lowering):
    lowering.set_tensor_lowering(self.outputs[0], lowering.tensors[self.inputs[0]])


# Packed rows.


def test_only_ids_that_are_at_most_one_mark_padding_alone(graph):
  ids = graph.constant(IDS, graph.batch_dim, graph.length_dim)
  one = mtf.import_tf_tensor(graph.mesh, tf.constant(1, tf.int32), [])
  for made, packed in [
      (mtf.minimum(ids, 1), False), (mtf.maximum(ids, 1), True),
      (mtf.minimum(ids, 2), True), (mtf.minimum(ids, ids + 1), True),
      (OtherMinimum(tf.minimum, ids, one, ids.shape).outputs[0], True)]:
    context = graph.context(sequence_id=made)
    assert segments.is_packed(context) == packed, made.operation


# Stacks whose layers share tensors.


class OwnStack(transformer.LayerStack):
  """May run its layers again."""


def test_only_known_stacks_share_tensors_among_layers():
  universal = universal_transformer.UTLayerStack
  for stack, calls in [
      (transformer.LayerStack([]), 1), (universal.__new__(universal), 1),
      (transformer.LayerStack([], recompute_grads=True), 2),
      (transformer.ReversibleLayerStack([]), 2), (OwnStack([]), 2),
      (types.SimpleNamespace(layers=[], call=None), 2)]:
    context = types.SimpleNamespace(
        model=types.SimpleNamespace(layer_stack=stack), cache={}, length_dim=LENGTH)
    made = []
    for _ in range(2):
      stack_cache.once_per_stack(context, "key", lambda made=made: made.append(0))
    assert len(made) == calls, stack


# Loops of decoding.


class RandomNumbers(mtf.Operation):
  """A user's operation that draws new numbers each time."""

  def __init__(self, mesh):
    super().__init__([], mesh=mesh, name="own")
    self._outputs = [mtf.Tensor(self, mtf.Shape([D_MODEL]), tf.float32)]

  def lower(self, lowering):
    lowering.set_tensor_lowering(self.outputs[0], lowering.mesh_impl(self).slicewise(
        lambda: tf.random_uniform([3])))


def drawn(x, low):
  return low + tf.random_uniform(tf.shape(x))


def loop(graph, make, mesh_impl=mtf.placement_mesh_impl.PlacementMeshImpl):
  """The sums of what `make` returns in three steps."""
  zero = mtf.zeros(graph.mesh, [], tf.int32)
  total = mtf.zeros(graph.mesh, [D_MODEL])
  _, *found = loops.while_loop(
      lambda i, *_: mtf.less(i, 3),
      lambda i, total, last: [i + 1, total + (new := make()), new],
      [zero, total, total])
  lowering = mtf.Lowering(graph.graph, {graph.mesh: mesh_impl(
      mtf.Shape([]), mtf.LayoutRules([]), [""])}, autostack=False)
  with tf.Session() as session:
    return session.run([lowering.export_to_tf_tensor(t) for t in found])


def test_random_numbers_of_a_users_own_are_drawn_in_each_step(graph):
  x = mtf.ones(graph.mesh, [D_MODEL])
  for make in (
      lambda: mtf.slicewise(lambda x: drawn(x, 0), [x], splittable_dims=[]),
      lambda: mtf.slicewise(functools.partial(drawn, low=0), [x], splittable_dims=[]),
      lambda: RandomNumbers(x.mesh).outputs[0],
      lambda: mtf.random_uniform(x.mesh, x.shape)):
    total, last = loop(graph, make)
    assert not np.allclose(total, 3 * last)


@pytest.mark.parametrize("on_instance", [False, True])
def test_a_mesh_with_products_of_its_own_keeps_them(on_instance, graph):
  class Own(mtf.placement_mesh_impl.PlacementMeshImpl):
    pass

  calls = []

  def einsum(equation, *slices):
    calls.append(equation)
    return tf.einsum(equation, *slices)

  def make(*args):
    mesh_impl = Own(*args)
    if on_instance:
      mesh_impl.einsum = einsum
    return mesh_impl

  if not on_instance:
    Own.einsum = staticmethod(einsum)
  matrix = mtf.ones(graph.mesh, [LENGTH, D_MODEL])

  def new():
    rows = mtf.random_uniform(graph.mesh, [VOCAB, LENGTH])
    product = mtf.einsum([rows, matrix], output_shape=[VOCAB, D_MODEL])
    return mtf.reduce_sum(product, reduced_dim=VOCAB)

  loop(graph, new, make)
  assert calls


# Decoders.


def bare(cls, **attributes):
  model = cls.__new__(cls)
  vars(model).update(attributes)
  return model


class OwnDecoder(transformer.Unitransformer):
  """A subclass may decode in another way."""


class OwnModel:
  """Has a decoder, but is no model of Mesh's."""

  def __init__(self, part):
    self.decoder = part


class OwnBitransformer(transformer.Bitransformer):
  """Computes its decoder."""

  @property
  def decoder(self):
    return bare(transformer.Unitransformer, autoregressive=True)


def test_other_models_decode_as_they_do():
  for model in (
      bare(OwnDecoder, autoregressive=True),
      bare(transformer.Unitransformer, autoregressive=False), OwnModel("greedy"),
      OwnModel(bare(transformer.Unitransformer, autoregressive=True))):
    assert decoder.faster(model) is model


def test_parts_that_only_have_the_name_of_a_decoder_stay():
  text = bare(transformer.Bitransformer, decoder="greedy", student=None)
  assert vars(decoder.faster(text)) == vars(text)
  assert type(decoder.faster(bare(OwnBitransformer)).decoder) is (
      transformer.Unitransformer)


def test_methods_that_were_replaced_stay(monkeypatch):
  model = bare(transformer.Unitransformer, autoregressive=True)
  model.sample_autoregressive = own = lambda ids: ids
  assert type(decoder.faster(model)) is decoder.Decoder
  assert decoder.faster(model).sample_autoregressive is own
  monkeypatch.setattr(transformer.Unitransformer, "beam_search", lambda *args: None)
  assert decoder.faster(model) is model


# Gradients of embeddings.


FACTOR = np.array([0.5, 2.0, 3.0])


def product(table, factor):
  return mtf.einsum([table, factor], output_shape=table.shape)


ROWS = GENERATOR.randn(VOCAB.size, D_MODEL.size).astype(np.float32)


def make_table(graph):
  return mtf.import_tf_tensor(
      graph.mesh, tf.placeholder_with_default(ROWS, ROWS.shape), [VOCAB, D_MODEL])


def on_cpu(graph, *tensors):
  """The values of tensors, and whether rows were added in place."""
  lowering = mtf.Lowering(graph.graph, {
      graph.mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
          mtf.Shape([]), mtf.LayoutRules([]), ["cpu:0"])}, autostack=False)
  with tf.Session() as session:
    values = session.run([lowering.export_to_tf_tensor(t) for t in tensors])
  return values, any(
      op.type == "InplaceAdd" for op in graph.tf_graph.get_operations())


def test_rows_are_added_in_place_to_a_product_of_their_own(graph):
  table = make_table(graph)
  ids = graph.constant(IDS, graph.batch_dim, graph.length_dim)
  hidden = lookup.lookup(table, ids, VOCAB)
  logits = mtf.einsum([hidden, table], output_shape=ids.shape + VOCAB)
  _, is_in_place = on_cpu(
      graph, *mtf.gradients([mtf.reduce_sum(mtf.square(logits))], [table]))
  assert is_in_place


def test_rows_are_added_in_place_only_to_a_tensor_that_nothing_else_reads(graph):
  table = make_table(graph)
  ids = graph.constant(IDS, graph.batch_dim, graph.length_dim)
  counts = np.bincount(IDS.flat, minlength=VOCAB.size)[:, None]
  for make, factor in [
      (lambda: product(table, graph.constant(FACTOR, D_MODEL)), FACTOR),  # Read twice.
      (lambda: mtf.einsum([table], output_shape=table.shape), 1),
      (lambda: mtf.identity(table), 1), (lambda: table, 1)]:
    grad, = mtf.gradients(
        [mtf.reduce_sum(lookup.lookup(table, ids, VOCAB))], [table])
    with tf.variable_scope("x/gradients/y"):
      total = make()
    added = grad + total
    again = mtf.einsum([total, added], output_shape=table.shape)
    values, is_in_place = on_cpu(graph, added, total, table, again)
    assert not is_in_place
    kept = ROWS * factor
    for value, expected in zip(values, (
        kept + counts, kept, ROWS, kept * (kept + counts))):
      np.testing.assert_allclose(value, expected, atol=1e-5)


# Losses.


class OtherOneHot(mtf.OneHotOperation):
  """The same constructor; a user's lowering may smooth the targets."""


class OtherEinsum(mtf.EinsumOperation):
  """The same constructor; only its lowering and gradient are other ones."""

  def gradient(self, grad_ys):
    return [3 * g for g in super().gradient(grad_ys)]


def loss(graph, make_targets, vocab=VOCAB, make_logits=None):
  """(loss, gradient of the hidden activations, whether ids were read)."""
  table = graph.constant(GENERATOR.randn(VOCAB.size, D_MODEL.size), VOCAB, D_MODEL)
  ids = graph.constant(IDS, graph.batch_dim, graph.length_dim)
  hidden = lookup.lookup(table, ids, VOCAB)
  table = mtf.rename_dimension(table, VOCAB.name, vocab.name)
  product = [hidden, table], ids.shape + vocab
  logits = (make_logits(*product) if make_logits
            else mtf.einsum(product[0], output_shape=product[1]))
  targets = make_targets(ids, vocab)
  values = []
  for function in (embedding._of_ids(_STOCK), _STOCK):
    start = len(graph.graph.operations)
    total = mtf.reduce_sum(function(logits, targets, vocab, z_loss=0.01))
    values.append([total, *mtf.gradients([total], [hidden])])
    is_read = any(isinstance(op, cross_entropy.CrossEntropyOperation)
                  for op in graph.graph.operations[start:])
    values[-1].append(is_read)
  (ours, grad, is_read), (theirs, stock_grad, _) = values
  found = graph.run(ours, grad, theirs, stock_grad)
  np.testing.assert_allclose(found[0], found[2], rtol=1e-5)
  np.testing.assert_allclose(found[1], found[3], atol=1e-5)
  return is_read


_STOCK = mtf.layers.softmax_cross_entropy_with_logits.__wrapped__


def one_hot(ids, vocab):
  return mtf.one_hot(ids, vocab, dtype=tf.float32, on_value=0.9, off_value=0.02)


def test_only_targets_that_are_known_ids_are_read(graph):
  def of_subclass(ids, vocab):
    return OtherOneHot(ids, vocab, 0.9, 0.02, tf.float32).outputs[0]

  assert loss(graph, one_hot)
  assert not loss(graph, lambda ids, vocab: one_hot(ids, vocab) * 2)
  assert not loss(graph, of_subclass)
  assert not loss(graph, one_hot, mtf.Dimension("classes", VOCAB.size))


def test_logits_that_are_no_product_with_the_table_get_their_gradient(graph):
  for make_logits in (
      lambda factors, shape: mtf.einsum(factors, output_shape=shape) * 2,
      lambda factors, shape: mtf.multiply(
          mtf.einsum(factors, output_shape=shape),
          mtf.range(factors[0].mesh, shape.dims[-1], tf.float32)),
      lambda factors, shape: OtherEinsum(factors, shape).outputs[0]):
    assert loss(graph, one_hot, make_logits=make_logits)


# Optimizers.


class OwnAdafactor(optimize.AdafactorOptimizer):
  """A subclass may compute something else."""


def test_other_optimizers_update_as_they_do(monkeypatch):
  models.parse_gin([], ["synthesizer_stack.attention = 'V'"])
  make = functools.partial(optimizer.fast, mesh_shape="", layout="")
  stock = optimize.AdafactorOptimizer
  namesake = type(stock.__name__, (stock,), {"__module__": stock.__module__})
  for own in (OwnAdafactor, namesake):
    assert type(make(own)(learning_rate=0.1)) is own

  def with_own_update(**kwargs):
    made = stock(**kwargs)
    made.apply_grad = update
    return made

  def update(grad, var):
    return [grad, var]

  assert make(with_own_update)(learning_rate=0.1).apply_grad is update
  assert type(make(stock)(learning_rate=0.1)) is optimizer.FastAdafactor
  monkeypatch.setattr(stock, "apply_grad", lambda self, grad, var: [])
  assert type(make(stock)(learning_rate=0.1)) is stock


# The export to Hugging Face.


def test_a_layer_with_the_name_of_t5s_is_not_exported_as_it():
  for base in (transformer_layers.DenseReluDense, transformer_layers.EncDecAttention):
    for parent in (base, transformer.TransformerLayer):
      namesake = type(base.__name__, (parent,), {"__module__": "own"})
      assert trained._class(namesake()) == f"own.{base.__name__}"
    assert trained._class(base()) == base.__name__


# Graphs for TPUs.


def test_variables_that_a_user_places_on_cpus_change_no_result(monkeypatch):
  """Such a graph may be taken for one of TPUs, which computes the same."""
  x = np.random.RandomState(1).randn(*IDS.shape, harness.D_MODEL)
  expected, *_ = harness.forward(cases.make_layer("R+V"), x, True, IDS, packed=True)
  seen = IDS > 0
  for placer in (
      types.SimpleNamespace(device_function="/cpu:0"),
      types.SimpleNamespace(device_function=lambda operation: "/cpu:0"),
      mtf.utils.BalancedVariablePlacer(["/cpu:0", "/device:CPU:0"])):
    monkeypatch.setattr(models, "variable_placer", lambda tpu, placer=placer: placer)
    found, *_ = harness.forward(cases.make_layer("R+V"), x, True, IDS, packed=True)
    np.testing.assert_allclose(found[seen], expected[seen], atol=1e-5)
