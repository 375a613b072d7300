"""Builds small T5 models by gin, as the trainer does."""

import types

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
from support import sessions
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.t5 import stack
import tensorflow.compat.v1 as tf

VOCABULARY = 32

TINY = [
    "d_model = 10",
    "d_ff = 14",
    "num_layers = 2",
    "num_heads = 2",
    "d_kv = 6",
    "dropout_rate = 0.0",
    "Unitransformer.max_length = 16",
]


parse_gin = gin_files.parse


def blocks(encoder, decoder):
  """Lines of gin for stacks with these attentions, one for each block.

  A notation, or a reference such as "@SelfAttention", is an attention.
  """
  lines = []
  for stack_name, attentions in (("encoder", encoder), ("decoder", decoder)):
    lines += [f"{stack_name}/synthesizer_stack.attention = {entries(attentions)}",
              f"{stack_name}/make_layer_stack.num_layers = {len(attentions)}"]
  return lines


def entries(attentions):
  """A list of these attentions, as gin reads it."""
  return f"[{', '.join(a if a[0] == '@' else repr(a) for a in attentions)}]"


def build(model_type="bitransformer", vocabulary=VOCABULARY, mesh_shape=None,
          layout=None, targets_vocabulary=None):
  return stack.build_model(
      model_type, input_vocab_size=vocabulary,
      output_vocab_size=targets_vocabulary or vocabulary,
      mesh_shape=mesh_shape, layout_rules=layout)


def variable_placer(tpu):
  """Returns what T5's trainer uses to place variables: None without a TPU."""
  return mtf.utils.BalancedVariablePlacer(["/cpu:0"]) if tpu else None


class Model:
  """A model in its own graph, with float32 everywhere."""

  def __init__(self, model_type="bitransformer", vocabulary=VOCABULARY,
               mesh_shape="", layout="", targets_vocabulary=None, tpu=False):
    self.mesh_shape = mtf.convert_to_shape(mesh_shape)
    self.layout = mtf.convert_to_layout_rules(layout)
    self.tf_graph = tf.Graph()
    with self.tf_graph.as_default():
      self.graph = mtf.Graph()
      self.mesh = mtf.Mesh(self.graph, "mesh", variable_placer(tpu is True))
      if tpu == "gpu":
        splits.compile_for(tpu)
      self.model = build(
          model_type, vocabulary, self.mesh_shape, self.layout,
          targets_vocabulary)

  def ids(self, array):
    """An int32 tensor [batch, length]."""
    array = np.asarray(array)
    shape = mtf.Shape([mtf.Dimension("batch", array.shape[0]),
                       mtf.Dimension("length", array.shape[1])])
    with self.tf_graph.as_default():
      return mtf.import_fully_replicated(
          self.mesh, tf.constant(array, tf.int32), shape)

  def encode(self, ids):
    """The output of the encoder, whose variables are made."""
    encoded, _ = self.model.encoder.call_simple(
        ids, None, False, mode="eval", sequence_id=mtf.minimum(ids, 1),
        shared_params=self.model._shared_params(
            ids.mesh, mtf.VariableDType(tf.float32)))
    return encoded

  def loss_and_gradients(self, inputs, targets, mode="train", scale=0.3, **kwargs):
    """Returns the values of the loss and of its gradients, by the names of variables.

    Args:
      inputs: ids [batch, length] as Mesh tensors.
      targets: ids [batch, length] as Mesh tensors.
      mode: "train" or "eval".
      scale: the standard deviation of the variables.
      **kwargs: other arguments of `call_simple`.
    """
    with self.tf_graph.as_default():
      _, loss = self.model.call_simple(inputs, targets, True, mode=mode, **kwargs)
      variables = self.graph.trainable_variables
      grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
      (values,), _ = self.run(
          *[mtf.cast(t, tf.float32) for t in (loss, *grads)], scale=scale)
    return dict(zip(["loss", *(v.name for v in variables)], values))

  def run(self, *tensors, updates=(), steps=1, seed=0, scale=None, values=None):
    """Returns the values of tensors, before each of `steps` runs of the updates.

    Args:
      *tensors: Mesh tensors.
      updates: Mesh operations that change variables, after the tensors are read.
      steps: how often to run tensors and updates.
      seed: the seed of the variables, if scale is given.
      scale: the standard deviation of the variables; None keeps the initial values.
      values: the values of variables by name, instead of these.

    Returns:
      a list with the values for each step, and the variables by name.
    """
    # The master of an unsplit variable is its slice, as it has the name of the device.
    mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(
        self.mesh_shape, self.layout, ["/device:CPU:0"] * self.mesh_shape.size)
    with tf.variable_scope(
        tf.get_variable_scope(), initializer=tf.zeros_initializer()):  # Of slices.
      lowering = mtf.Lowering(self.graph, {self.mesh: mesh_impl}, autostack=False)
    fetches = [lowering.export_to_tf_tensor(t) for t in tensors]
    update = [lowering.lowered_operation(op) for op in updates]
    masters = {v.name: v.get_master() for v in self.graph.all_variables}
    if scale:
      generator = np.random.RandomState(seed)
      values = {
          name: (scale * generator.randn(*master.shape.as_list())).astype(np.float32)
          for name, master in masters.items()}
    with sessions.start() as session:
      session.run(tf.variables_initializer([
          v for v in tf.global_variables() if not values or v.op.name not in values]))
      if values:
        sessions.assign(session, {name: masters[name] for name in values}, values)
      session.run(lowering.copy_masters_to_slices())
      per_step = []
      for _ in range(steps):
        per_step.append(session.run(fetches))
        if update:
          session.run(update)
      if update or not values:
        session.run(lowering.copy_slices_to_masters())
        values = session.run(masters)
    return per_step, values


LENGTHS = {"inputs": 5, "targets": 7}


def estimator_arguments(folder, **others):
  """Arguments of `utils.get_estimator` for a small model, as `utils.run` gives them."""
  return {
      "model_type": "bitransformer",
      "vocabulary": types.SimpleNamespace(vocab_size=VOCABULARY),
      "mesh_shape": mtf.convert_to_shape(""),
      "layout_rules": mtf.convert_to_layout_rules(""), "model_dir": str(folder),
      "batch_size": 3, "sequence_length": LENGTHS, "autostack": True,
      "learning_rate_schedule": 0.1, "keep_checkpoint_max": 11,
      "save_checkpoints_steps": 13, "optimizer": optimize.AdafactorOptimizer,
      "predict_fn": None, "variable_filter": None, "ensemble_inputs": None,
      "use_tpu": None, "tpu_job_name": "job", "iterations_per_loop": 17,
      "cluster": None, **others}


def training_step(model_type="bitransformer"):
  """Builds a training step of the model that gin has; returns its `Model`."""
  m = Model(model_type)
  with m.tf_graph.as_default():
    ids = m.ids(np.ones((2, 7), int))
    _, loss = m.model.call_simple(ids, ids, True, mode="train")
    grads = mtf.gradients([loss], [v.outputs[0] for v in m.graph.trainable_variables])
  assert all(grad is not None for grad in grads)
  return m


def count_parameters(parse, vocabulary, length):
  """The number of trainable parameters of a model.

  Args:
    parse: a function that fills gin, with the bindings in its arguments.
    vocabulary: the size of the vocabulary.
    length: the number of tokens.
  """
  parse()
  layers, sizes = gin.query_parameter("%num_layers"), []
  for few in "num_layers = 1", "num_layers = 2":  # The others have as many.
    parse(few)
    m = Model(vocabulary=vocabulary)
    with m.tf_graph.as_default():
      ids = m.ids(np.zeros((1, length), int))
      m.model.call_simple(ids, ids, True, mode="train")
    sizes.append(sum(v.size for v in m.graph.trainable_variables))
  return sizes[0] + (layers - 1) * (sizes[1] - sizes[0])
