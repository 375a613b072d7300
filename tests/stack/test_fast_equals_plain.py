"""What fast/ computes equals the plain formulas and Mesh TensorFlow's own layers.

Whole models are drawn at random: notation, sizes, packing, mesh, tied or untied
embeddings, precision, and a step of training or a decoding. Few cases, the same on
every machine, are part of the suite. For others, and for more of them:

  HYPOTHESIS_CASES=2000 python -m pytest tests/stack/test_fast_equals_plain.py \
    --hypothesis-profile=many --hypothesis-seed=1
"""

from typing import NamedTuple

from hypothesis import given
from hypothesis import Phase
from hypothesis import settings
from hypothesis import strategies as st
import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import cases as table
from support import decoding
from support import meshes
from support import models
import tensorflow.compat.v1 as tf

pytestmark = pytest.mark.slow
PARTS = sorted(table.VARIANTS)
ALONE = ["LightConv", "DyConv", "Linformer", "SparseFixed", "SparseStrided"]
MESHES = ["", "", "", "batch:2", "model:2", "batch:2,model:2"]


class Case(NamedTuple):
  """A model and what it does.

  Attributes:
    notation: of both stacks.
    mesh_shape: heads, d_ff and the vocabulary are split over `model`.
    tpu: whether the model computes as on a TPU, in training.
    task: "train", "greedy" or "beams".
    packed: whether rows hold several segments, in training.
    bfloat16: whether activations are bfloat16, in training.
    bindings: further lines of gin.
    seed: the seed of the tokens and of the variables.
  """
  notation: str
  mesh_shape: str
  tpu: bool
  task: str
  packed: bool
  bfloat16: bool
  bindings: list
  seed: int


@st.composite
def cases(draw):
  """Draws a `Case`."""
  parts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3, unique=True)
  notation = draw(st.one_of(parts.map("+".join), parts.map("+".join),
                            st.sampled_from(ALONE)))
  task = draw(st.sampled_from(["train", "train", "train", "greedy", "beams"]))
  trains = task == "train"
  tied = draw(st.booleans())
  gated = draw(st.booleans())
  bindings = [
      f"d_ff = {draw(st.sampled_from([12, 14]))}", f"d_kv = {draw(st.integers(2, 6))}",
      "num_layers = 1", f"num_heads = {draw(st.sampled_from([2, 4]))}",
      f"Unitransformer.shared_embedding_and_softmax_weights = {tied}",
      f"Bitransformer.shared_embedding = {tied}"]
  if gated:
    bindings.append("DenseReluDense.activation = ['gelu', 'linear']")
  if notation == "Linformer":  # It is for encoders alone.
    bindings.append("decoder/synthesizer_stack.attention = 'D'")
  elif notation not in ALONE and draw(st.booleans()):
    bindings.append(
        "SyntheticAttention.relative_attention_type = 'bias_shared'")
  return Case(notation, draw(st.sampled_from(MESHES)), trains and draw(st.booleans()),
              task, trains and draw(st.booleans()),
              trains and draw(st.sampled_from([False, False, True])), bindings,
              draw(st.integers(0, 99)))


# To shrink a case would take minutes.
@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])
@given(case=cases())
def test_fast_equals_plain(case):
  plain, fast = [numbers(case, enabled) for enabled in (False, True)]
  assert plain.keys() == fast.keys()
  for name, expected in plain.items():
    if case.task != "train":
      np.testing.assert_array_equal(fast[name], expected, err_msg=name)
      continue
    tolerance = 0.05 if case.bfloat16 else 2e-5
    np.testing.assert_allclose(
        fast[name], expected, rtol=0, err_msg=name,
        atol=tolerance * max(1, np.abs(expected).max(initial=0)))


def numbers(case, enabled):
  """The loss, logits and gradients, or the decoded ids, by name."""
  decoding.parse(case.notation, *case.bindings, f"synthesizer_fast.enabled = {enabled}")
  m = models.Model(mesh_shape=case.mesh_shape, layout=meshes.LAYOUT, tpu=case.tpu)
  with m.tf_graph.as_default():
    named = (_training if case.task == "train" else _decoding)(m, case)
    (values,), _ = m.run(*named.values(), seed=case.seed,
                         scale=0.3 if case.task == "train" else 1.0)
  return dict(zip(named, values))


def _training(m, case):
  generator = np.random.RandomState(case.seed)
  inputs, targets = [
      m.ids(generator.randint(2, models.VOCABULARY, (4, n))) for n in (9, 7)]
  ids = {}
  if case.packed:
    ids = {"encoder_sequence_id": m.ids([[1, 1, 1, 2, 2, 2, 2, 3, 0]] * 4),
           "decoder_sequence_id": m.ids([[1, 1, 2, 2, 2, 3, 0]] * 4)}
  activations = tf.bfloat16 if case.bfloat16 else tf.float32
  logits, loss = m.model.call_simple(
      inputs, targets, True, mode="train", **ids,
      variable_dtype=mtf.VariableDType(tf.float32, tf.float32, activations))
  variables = m.graph.trainable_variables
  grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
  named = {"loss": loss, "logits": logits,
           **{v.name: grad for v, grad in zip(variables, grads)}}
  return {name: mtf.cast(t, tf.float32) for name, t in named.items()}


def _decoding(m, case):
  inputs = m.ids([[5, 9, 3, 7, 11, 2, 1], [8, 4, 1, 0, 0, 0, 0]])
  beams = {"beam_size": 3, "alpha": 0.6} if case.task == "beams" else {}
  return {"ids": m.model.decode(inputs, max_decode_length=8, **beams)}
