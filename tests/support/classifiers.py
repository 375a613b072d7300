"""A tiny encoder-only classifier, and the values of its training step."""

import mesh_tensorflow as mtf
import numpy as np
from support import models
from support.meshes import LAYOUT

IDS = 4  # Padding and three classes.
INPUTS = np.array([[5, 9, 3, 7, 1, 0, 0], [8, 4, 7, 1, 0, 0, 0],
                   [6, 2, 8, 8, 3, 9, 1], [0, 0, 0, 0, 0, 0, 0]])
TARGETS = np.array([[1], [3], [2], [0]])
BIAS = "SyntheticAttention.relative_attention_type = 'bias_shared'"


def make(*bindings, attention="R+V", mesh_shape=""):
  """Makes a tiny classifier."""
  models.parse_gin(["classifier.gin"], models.TINY + [
      "num_heads = 4", "d_ff = 12", BIAS,
      "Unitransformer.positional_embedding = False",
      f"encoder/synthesizer_stack.attention = {attention!r}", *bindings])
  return models.Model(
      mesh_shape=mesh_shape, layout=LAYOUT, targets_vocabulary=IDS)


def step(m, inputs=INPUTS, targets=TARGETS, mode="train", **kwargs):
  """Returns the logits, the loss, and its gradients by name, as Mesh tensors."""
  logits, loss = m.model.call_simple(
      m.ids(inputs), m.ids(targets), True, mode=mode, **kwargs)
  variables = m.graph.trainable_variables
  grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
  assert all(g is not None for g in grads)
  return logits, loss, dict(zip([v.name for v in variables], grads))


def loss_and_gradients(*bindings, **kwargs):
  """Returns the loss and the gradients of a training step, by name."""
  m = make(*bindings, **kwargs)
  return m.loss_and_gradients(m.ids(INPUTS), m.ids(TARGETS))
