"""What only looks like something that the package knows stays Mesh TensorFlow's.

`tests/layers/` has the lookalikes of norms, feed-forward layers, self-attention and
cross-attention.
"""

import functools
import types

from absl import logging
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from mesh_tensorflow.transformer import universal_transformer
import numpy as np
import pytest
from support import cases
from support import checkpoint_files
from support import harness
from support import lookalikes
from support import models
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import stack_cache
from synthesizer_mtf.fast import adafactor
from synthesizer_mtf.fast import lookup
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.fast import models as fast_models
from synthesizer_mtf.fast import vocabulary
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.tools.hugging_face import trained
from synthesizer_mtf.trainer.data import data_record
from synthesizer_mtf.trainer.watching import failures
from synthesizer_mtf.trainer.watching import progress
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
      (mtf.minimum(ids, 2), True), (mtf.minimum(ids, mtf.minimum(ids, 1)), True),
      (OtherMinimum(tf.minimum, ids, one, ids.shape).outputs[0], True)]:
    context = graph.context(sequence_id=made)
    assert segments.is_packed(context) == packed, made.operation
    assert segments.is_packed(context, True) and not segments.is_packed(context, False)
  assert not segments.is_packed(graph.context(), True)


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
  _, *outputs = loops.while_loop(
      lambda i, *_: mtf.less(i, 3),
      lambda i, total, last: [i + 1, total + (new := make()), new],
      [zero, total, total])
  lowering = mtf.Lowering(graph.graph, {graph.mesh: mesh_impl(
      mtf.Shape([]), mtf.LayoutRules([]), [""])}, autostack=False)
  with tf.Session() as session:
    return session.run([lowering.export_to_tf_tensor(t) for t in outputs])


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
      bare(OwnDecoder, autoregressive=True), OwnModel("greedy"),
      OwnModel(bare(transformer.Unitransformer, autoregressive=True))):
    assert fast_models.for_model(model) is model
  encoder = bare(transformer.Unitransformer, autoregressive=False)
  assert fast_models.for_model(encoder, reads=False) is encoder


def test_parts_that_only_have_the_name_of_a_decoder_stay():
  text = bare(transformer.Bitransformer, decoder="greedy", student=None)
  assert vars(fast_models.for_model(text)) == vars(text)
  assert type(fast_models.for_model(bare(OwnBitransformer)).decoder) is (
      transformer.Unitransformer)


def test_models_whose_methods_were_replaced_stay():
  for method in ("sample_autoregressive", "beam_search"):
    lookalikes.check_stay(
        functools.partial(fast_models.for_model, reads=False),
        transformer.Unitransformer, method,
        lambda cls: bare(cls, autoregressive=True))


# Gradients of embeddings.


def on_cpu(graph, *tensors):
  """The values of tensors, on a device where rows are added in place."""
  lowering = mtf.Lowering(graph.graph, {
      graph.mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
          mtf.Shape([]), mtf.LayoutRules([]), ["cpu:0"])}, autostack=False)
  with tf.Session() as session:
    values = session.run([lowering.export_to_tf_tensor(t) for t in tensors])
  assert "InplaceAdd" in {op.type for op in graph.tf_graph.get_operations()}
  return values


def test_rows_are_added_to_a_gradient_that_others_read(graph):
  """Each reader gets the gradient without the rows, whoever made it."""
  factor = np.array([0.5, 2.0, 3.0])
  table_values = GENERATOR.randn(VOCAB.size, D_MODEL.size)
  table = graph.constant(table_values, VOCAB, D_MODEL)
  ids = graph.constant(IDS, graph.batch_dim, graph.length_dim)
  counts = np.bincount(IDS.flat, minlength=VOCAB.size)[:, None]
  for make, scale in [
      (lambda: mtf.einsum([table, graph.constant(factor, D_MODEL)],
                          output_shape=table.shape), factor),
      (lambda: OtherEinsum([table, graph.constant(factor, D_MODEL)],
                           table.shape).outputs[0], factor),
      (lambda: mtf.identity(table), 1), (lambda: table, 1)]:
    grad, = mtf.gradients(
        [mtf.reduce_sum(lookup.lookup(table, ids, VOCAB))], [table])
    total = make()
    added = grad + total
    assert type(added.operation) is lookup.AddRowsOperation
    again = mtf.einsum([total, added], output_shape=table.shape)
    kept = table_values * scale
    for value, expected in zip(on_cpu(graph, added, total, table, again), (
        kept + counts, kept, table_values, kept * (kept + counts))):
      np.testing.assert_allclose(value, expected, atol=1e-5)


# Embeddings and losses.


class OtherEinsum(mtf.EinsumOperation):
  """The same constructor; only its lowering and gradient are other ones."""

  def gradient(self, grad_ys):
    return [3 * g for g in super().gradient(grad_ys)]


class OwnEmbedding(transformer.VocabEmbedding):
  """A subclass may look up something else."""


def test_embeddings_of_a_users_own_stay():
  reader = bare(vocabulary.Reader)
  stock = transformer.VocabEmbedding
  namesake = type(stock.__name__, (stock,), {"__module__": stock.__module__})
  for own in (bare(OwnEmbedding), bare(namesake), types.SimpleNamespace()):
    context = types.SimpleNamespace(shared_params={"embedding": own})
    assert reader._embedding(context) is own
  context = types.SimpleNamespace(shared_params={"embedding": bare(stock)})
  assert type(reader._embedding(context)) is vocabulary.TokenEmbedding


def test_only_logits_that_the_package_multiplies_have_factors(graph):
  hidden = graph.constant(
      GENERATOR.randn(*IDS.shape, D_MODEL.size), graph.batch_dim, graph.length_dim,
      D_MODEL)
  table = graph.constant(GENERATOR.randn(VOCAB.size, D_MODEL.size), VOCAB, D_MODEL)
  ids = graph.constant(IDS, graph.batch_dim, graph.length_dim)
  ours = vocabulary._product(hidden, table, D_MODEL, VOCAB)
  assert vocabulary._factors(ours, ids) == [hidden, table]
  for logits in (
      mtf.einsum([hidden, table], output_shape=ours.shape), ours * 2,
      OtherEinsum([hidden, table], ours.shape).outputs[0]):
    assert not vocabulary._factors(logits, ids)


def test_models_with_losses_of_their_own_keep_them():
  lookalikes.check_stay(
      fast_models.for_model, transformer.Unitransformer, "_compute_loss",
      lambda cls: bare(cls, autoregressive=False))
  reader = bare(vocabulary.Reader, _loss_fn=lambda *args: args)
  arguments = reader, "context", "logits", "targets", "vocab"
  assert reader._compute_loss(*arguments[1:]) == arguments


# Optimizers.


def test_other_optimizers_update_as_they_do():
  models.parse_gin([], ["synthesizer_stack.attention = 'V'"])
  lookalikes.check_stay(
      lambda chosen: adafactor.fast(lambda: chosen, mesh_shape="", layout="")(),
      optimize.AdafactorOptimizer, "apply_grad", lambda cls: cls(learning_rate=0.1))


def test_operations_that_may_read_a_variable_are_waited_for():
  """Only known operations share its memory, or write it; all others read it."""
  with tf.Graph().as_default():
    variable = tf.Variable([[1.0, 2.0]], use_resource=False)
    reshaped = tf.reshape(variable, [-1])
    lookalikes = [
        tf.raw_ops.Snapshot(input=variable), tf.bitcast(reshaped, tf.int32),
        tf.py_func(lambda x: x, [reshaped], tf.float32)]
    written = tf.assign(variable, [[3.0, 4.0]])
    readers = adafactor._readers(variable)
    assert {x.op for x in lookalikes} <= set(readers)
    assert written.op not in readers


# Mixed precision.


def in_bfloat16(make):
  """The types of operations in bfloat16 in a product of `make(product, values)`."""
  values = GENERATOR.randn(64, 64).astype(np.float32)
  with tf.Graph().as_default(), tf.Session(
      config=mixed_precision.session_config()) as session:
    x, w = tf.placeholder(tf.float32, values.shape), tf.placeholder(
        tf.float32, values.shape)
    product = tf.einsum("ab,bc->ac", x, w)
    last = tf.einsum("ab,bc->ac", make(product, w), w)
    traced = tf.RunMetadata()
    session.run(last, {x: values, w: values}, run_metadata=traced,
                options=tf.RunOptions(output_partition_graphs=True))
  return {node.op.removeprefix("_Mkl") for graph in traced.partition_graphs
          for node in graph.node if node.attr["T"].type == tf.bfloat16.as_datatype_enum
          and node.op not in ("Const", "Identity")}


def test_operations_that_only_have_the_names_of_ours_stay_in_float32(monkeypatch):
  """The rewriter goes by types; a sum of a norm or of gradients has another type."""
  for name in mixed_precision._LISTS:
    monkeypatch.delenv(f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name}", raising=False)
  ours = {"Einsum"} if mixed_precision.has_products() else set()
  for name in mixed_precision.OPERATIONS:
    operation = getattr(tf.raw_ops, name)
    changed = in_bfloat16(lambda x, y, operation=operation: operation(x=x, y=y))
    assert changed == (ours and {*ours, name})
  for make in (
      lambda x, y: tf.add(x, y, name="Add"),
      lambda x, y: tf.multiply(x, y, name="MulNoNan"),
      lambda x, y: tf.matmul(x, y, name="Einsum"),  # As Adafactor's.
      lambda x, y: x + tf.reduce_max(x, -1, keepdims=True)):
    assert in_bfloat16(make) == ours


# What a training prints.


def test_only_the_line_of_mesh_is_not_printed(monkeypatch):
  with tf.Graph().as_default():
    loss = tf.constant(3.0)
    lookalikes = [
        tf.Print(loss, [loss], "a user's own"),
        tf.Print(loss, [loss]),
        tf.debugging.check_numerics(loss, "step, tf_loss"),
        tf.multiply(loss, 2, name="Print"),
        tf.Print(loss, [loss], "step, tf_loss") * 1]
    printed = tf.Print(loss, [loss], "step, tf_loss")
    assert progress.quiet(spec := train_spec(printed)).loss is loss
    for unknown in lookalikes:
      assert progress.quiet(train_spec(unknown)).loss is unknown
    monkeypatch.setattr(logging, "get_verbosity", lambda: logging.DEBUG)
    assert progress.quiet(spec).loss is printed


def train_spec(loss):
  return tf.estimator.EstimatorSpec("train", loss=loss, train_op=tf.no_op())


# The data of a restart.


def data_digest(path, function, batch=2, seed=1, buffer=4, tune=False, name=None,
                cut=tf.data.Dataset.take):
  """The digest of the lines of a file."""
  with tf.Graph().as_default():
    data = tf.data.TextLineDataset(path, name=name).shuffle(buffer, seed)
    data = cut(data.map(function).batch(batch, drop_remainder=True), 9)
    if tune:
      options = tf.data.Options()
      options.autotune.enabled = True
      data = data.with_options(options)
    tf.data.make_initializable_iterator(data)
    return data_record.describe(tf.get_collection("iterators")).pipeline


def test_data_that_only_look_alike_are_other_data():
  def joined(line, text=" one"):
    return tf.strings.join([line, text])

  def nested(function):
    return lambda line: tf.cond(
        tf.equal(line, ""), lambda: function(line), lambda: line)

  same = data_digest("a.txt", joined)
  for other in (
      data_digest("b.txt", joined), data_digest("a.txt", joined, batch=3),
      data_digest("b.txt", joined, tune=True, name="OptionsDataset"),
      data_digest("a.txt", joined, cut=tf.data.Dataset.skip),
      data_digest("a.txt", lambda line: joined(line, " two")),
      data_digest("a.txt", lambda line: joined(tf.strings.upper(line)))):
    assert other != same
  assert data_digest("a.txt", nested(tf.strings.upper)) != (
      data_digest("a.txt", nested(tf.strings.lower)))
  for alike in (
      data_digest("a.txt", joined, seed=2), data_digest("a.txt", joined, buffer=3),
      data_digest("a.txt", joined, tune=True), data_digest("a.txt", joined, name="b")):
    assert alike == same


# Damage.


def test_damage_elsewhere_is_not_taken_for_that_of_the_checkpoint(tmp_path):
  """Whatever raised the error, the checkpoint itself says whether it is damaged."""
  checkpoint_files.save(tmp_path, 4)
  path = str(tmp_path / "model.ckpt-4")
  with tf.Graph().as_default():
    read = tf.raw_ops.RestoreV2(prefix="another", tensor_names=["x"],
                                shape_and_slices=[""], dtypes=[tf.float32])[0].op
    errors = [tf.errors.DataLossError(None, read, "damaged"),
              tf.errors.DataLossError(None, tf.no_op("RestoreV2"), "damaged"),
              tf.errors.OutOfRangeError(None, None, "too short")]
  checkpoint = path, str(tmp_path / "model.ckpt-2"), None  # The second was removed.
  for own, error in zip(checkpoint * 3, errors * 3):
    with pytest.raises(tf.errors.OpError) as raised, failures.explained_damage(own):
      raise error
    assert raised.value is error
  checkpoint_files.flip(checkpoint_files.largest_data_file(tmp_path, 4))
  with pytest.raises(ValueError, match="is damaged"), failures.explained_damage(path):
    raise errors[0]


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
    y, *_ = harness.forward(cases.make_layer("R+V"), x, True, IDS, packed=True)
    np.testing.assert_allclose(y[seen], expected[seen], atol=1e-5)
