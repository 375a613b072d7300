"""Runs one attention layer on NumPy arrays, in each mode, with known variables."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
from support import light_graphs
from support import models
from support import sessions
import tensorflow.compat.v1 as tf

D_MODEL = 11


def _model(length, autoregressive, input_full_attention=False,
           d_model=D_MODEL):
  return transformer.Unitransformer(
      layer_stack=transformer.LayerStack(layers=[]), d_model=d_model,
      input_vocab_size=10, output_vocab_size=10 if autoregressive else None,
      autoregressive=autoregressive, max_length=length,
      input_full_attention=input_full_attention, positional_embedding=False)


class LayerGraph:
  """A graph with one attention layer, which tests call in several ways.

  A generator seeded by the name gives each variable its values, so graphs with the
  same variables hold the same values. `values` sets some of the variables. With scale
  None, variables keep their initial values. Dropout also depends on the seed.
  """

  def __init__(self, layer, decoder, batch, length, seed=0, values=None,
               scale=0.5, mesh_shape="", layout="", activation="float32",
               d_model=D_MODEL, input_full_attention=False, tpu=False):
    self.layer = layer
    self.decoder = decoder
    self.batch = batch
    self.length_dim = mtf.Dimension("length", length)
    self.batch_dim = mtf.Dimension("batch", batch)
    self.d_model = mtf.Dimension("d_model", d_model)
    self.dtype = mtf.VariableDType(activation_dtype=tf.as_dtype(activation))
    self._input_full_attention = input_full_attention
    self._seed, self._scale, self._values = seed, scale, values or {}
    self._mesh_shape = mtf.convert_to_shape(mesh_shape)
    self._layout = mtf.convert_to_layout_rules(layout)
    self.tf_graph = tf.Graph()
    with self.tf_graph.as_default():
      tf.set_random_seed(seed)
      self.graph = mtf.Graph()
      self.mesh = mtf.Mesh(self.graph, "mesh", models.variable_placer(tpu))
    self.variables = None

  def constant(self, array, *dims):
    array = np.asarray(array)
    dtype = self.dtype.activation_dtype if array.dtype.kind == "f" else tf.int32
    return mtf.import_fully_replicated(
        self.mesh, tf.cast(tf.constant(array), dtype), mtf.Shape(list(dims)))

  def context(self, mode="eval", **kwargs):
    positions = mtf.range(self.mesh, self.length_dim, tf.int32)
    if self.decoder:
      kwargs.setdefault("read_priority", positions)
      kwargs.setdefault("write_priority", positions)
    kwargs.setdefault("position", positions)
    kwargs.setdefault("batch_dims", [self.batch_dim])
    return transformer.Context(
        model=_model(self.length_dim.size, self.decoder,
                     self._input_full_attention, self.d_model.size),
        mesh=self.mesh, length_dim=self.length_dim, variable_dtype=self.dtype,
        mode=mode, **kwargs)

  def call(self, context, x):
    with self.light(), tf.variable_scope("layer", reuse=tf.AUTO_REUSE):
      return self.layer.call(context, x)

  def light(self):
    """Within a `with` block, variables are made as in `call`."""
    return light_graphs.light(share=False, placeholders=self._scale is not None)

  def gradients(self, outputs, weights):
    """Returns {name: gradient} of sum(output * weights), for trainable variables.

    Args:
      outputs: a list of Mesh tensors [batch, length, d_model].
      weights: <float>[batch, length, d_model]
    """
    weights = mtf.cast(self.constant(
        weights.astype(np.float32), self.batch_dim, self.length_dim, self.d_model),
                       tf.float32)
    loss = mtf.add_n([mtf.reduce_sum(mtf.cast(y, tf.float32) * weights)
                      for y in outputs])
    trainable = self.graph.trainable_variables
    names = [v.name[len("layer/"):] for v in trainable]
    grads = mtf.gradients([loss], [v.outputs[0] for v in trainable])
    missing = [n for n, g in zip(names, grads) if g is None]
    assert not missing, f"no gradient reaches {missing}"
    return dict(zip(names, grads))

  def run(self, *tensors):
    """Returns the NumPy values of `tensors`; fills `variables`."""
    devices = [""] * self._mesh_shape.size
    mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(
        self._mesh_shape, self._layout, devices)
    with self.light():
      lowering = mtf.Lowering(
          self.graph, {self.mesh: mesh_impl}, autostack=False)
    fetches = [tf.cast(lowering.export_to_tf_tensor(t), tf.float32)
               for t in tensors]
    masters = {v.name[len("layer/"):]: v.get_master()
               for v in self.graph.all_variables}
    with sessions.start() as session:
      initial = {}
      if self._scale is None:
        session.run(tf.global_variables_initializer())
        initial = session.run(masters)
      self.variables = {
          name: self._value(name, master, initial).astype(np.float32)
          for name, master in masters.items()}
      if self._scale is not None:
        return session.run(fetches, {
            masters[name]: value for name, value in self.variables.items()})
      sessions.assign(session, masters, self.variables)
      return session.run(fetches)

  def _value(self, name, master, initial):
    """Returns the given, the initial or a random value of a variable."""
    if name in self._values:
      return self._values[name]
    if name in initial:
      return initial[name]
    generator = np.random.RandomState(
        (self._seed + sum(map(ord, name))) % 2**32)
    return self._scale * generator.randn(*master.shape.as_list())


def forward(layer, x, decoder, sequence_id=None, packed=False, gradients=False,
            loss_weights=None, mode="eval", context=None, **kwargs):
  """Runs the layer over whole sequences.

  Args:
    layer: a `transformer.TransformerLayer`.
    x: <float>[batch, length, d_model]
    decoder: whether queries attend to no later keys.
    sequence_id: <int>[batch, length]: 0 for padding; ids of examples if packed,
      otherwise 1.
    packed: whether the ids are features, which may separate examples.
    gradients: whether to return also the gradient of sum(output * loss_weights) for
      each trainable variable.
    loss_weights: <float>[batch, length, d_model]; growing from 0 to 1 if None.
    mode: "train" or "eval".
    context: more arguments of `transformer.Context`, as NumPy arrays
      [batch, length].
    **kwargs: arguments of `LayerGraph`.

  Returns:
    the output <float>[batch, length, d_model], the graph, and with `gradients`
    a dict from variable names to their gradients.
  """
  batch, length, _ = x.shape
  graph = LayerGraph(layer, decoder, batch, length, **kwargs)
  with graph.tf_graph.as_default():
    more = {k: graph.constant(v, graph.batch_dim, graph.length_dim)
            for k, v in (context or {}).items()}
    if sequence_id is not None:
      ids = graph.constant(sequence_id, graph.batch_dim, graph.length_dim)
      more["sequence_id"] = ids if packed else mtf.minimum(ids, 1)
    d_model = mtf.Dimension("d_model", D_MODEL)
    x_dims = graph.batch_dim, graph.length_dim, d_model
    y = graph.call(graph.context(mode, **more), graph.constant(x, *x_dims))
    if not gradients:
      return graph.run(y)[0], graph
    if loss_weights is None:
      loss_weights = np.arange(x.size).reshape(x.shape) / x.size
    grads = graph.gradients([y], loss_weights)
    output, *values = graph.run(y, *grads.values())
    return output, graph, dict(zip(grads, values))
