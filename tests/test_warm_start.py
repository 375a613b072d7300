"""Models that start from a checkpoint with another attention or length."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import models
import numpy as np
import pytest
from synthesizer_mtf import warm_start
from synthesizer_mtf import warm_start_plan
import tensorflow.compat.v1 as tf

LENGTH = 9
T5 = ["transformer_layers.SelfAttention.relative_attention_type = 'bias_shared'",
      "Unitransformer.positional_embedding = False"]
OURS = T5 + ["SyntheticAttention.relative_attention_type = 'bias_shared'"]
CHECKPOINT = "warm_start.checkpoint = 'unused'"


def parse(attention=None, *bindings, files=(), max_length=16):
  tables = [f"{name}.max_length = {max_length}" for name in (
      "RandomLogits", "FactorizedRandomLogits", "DenseLogits",
      "FactorizedDenseLogits", "Linformer")]
  models.parse_gin(files, models.TINY + (OURS if attention else T5) + tables + [
      f"synthesizer_stack.attention = {attention!r}", CHECKPOINT, *bindings])


def run(path=None, save=None, train=0, step=0, **plan):
  """Builds the model that gin describes, and starts it.

  Args:
    path: the checkpoint to start from; None for fresh variables.
    save: where to save it at the end.
    train: for how many steps to train it then.
    step: the step after which it is.
    **plan: of `warm_start_plan.make_plan`.

  Returns:
    the loss, and the variables by name.
  """
  m = models.Model()
  ids = np.random.RandomState(0).randint(2, models.VOCABULARY, (4, LENGTH))
  with m.tf_graph.as_default():
    tf.set_random_seed(1)
    global_step = tf.train.create_global_step()
    # Each target is its input, which only cross-attention and positions tell.
    _, loss = m.model.call_simple(
        m.ids(ids), m.ids(ids[:, ::-1]), True, mode="train")
    variables = m.graph.trainable_variables
    updates = optimize.AdafactorOptimizer(learning_rate=0.1).apply_grads(
        mtf.gradients([loss], [v.outputs[0] for v in variables]), variables)
    lowering = mtf.Lowering(m.graph, {
        m.mesh: mtf.placement_mesh_impl.PlacementMeshImpl("", "", [""])},
                            autostack=False)
    loss = lowering.export_to_tf_tensor(loss)
    updates = [lowering.lowered_operation(op) for op in updates]
    start = path and warm_start.assignments(path, lambda *shapes: (
        warm_start_plan.make_plan(path, *shapes, **plan)))
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      global_step.load(step, session)
      if path:
        session.run(start)
      session.run(lowering.copy_masters_to_slices())
      for _ in range(train):
        session.run(updates)
      value = session.run(loss)
      session.run(lowering.copy_slices_to_masters())
      if save:
        tf.train.Saver().save(session, save)
      return value, {v.op.name: session.run(v) for v in tf.global_variables()}
