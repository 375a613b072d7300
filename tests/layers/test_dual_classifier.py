"""The classifier of two texts against NumPy."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support.classifiers import IDS
from support.classifiers import INPUTS
from support.classifiers import make
from support.classifiers import step
import tensorflow.compat.v1 as tf

DUAL = "make_bitransformer.bitransformer_cls = @DualEncoderClassifier"
NO_BLOCKS = ("encoder/synthesizer_stack.attention = None", "num_layers = 0")
FLOAT32 = mtf.VariableDType(tf.float32)
SIX = INPUTS[:, :6]


def numpy_text(p, ids):
  """The mean of a text's tokens, [batch, d_model], of an encoder without blocks."""
  x = p["shared/embedding"][ids]
  x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
  x = x * p["encoder/rms_norm/scale"] * (ids > 0)[..., None]
  return x.sum(1) / np.maximum((ids > 0).sum(-1, keepdims=True), 1)


@pytest.mark.parametrize("interaction", [True, False])
def test_the_head_reads_both_texts_their_product_and_difference(interaction):
  m = make(*NO_BLOCKS, DUAL, "DualEncoderClassifier.hidden_sizes = [11, 5]",
           f"DualEncoderClassifier.interaction = {interaction}")
  with m.tf_graph.as_default():
    logits, loss, _ = step(m, inputs=SIX, mode="eval")
    ((scores, _),), p = m.run(logits, loss, scale=1.0)
  one, two = (numpy_text(p, ids) for ids in (SIX[:, :3], SIX[:, 3:]))
  x = np.concatenate([one, two, one * two, one - two][:4 if interaction else 2], 1)
  for number in range(2):
    kernel = p[f"classifier_hidden_{number}/kernel"]
    x = np.maximum(x @ kernel.reshape(-1, kernel.shape[-1]), 0)
  expected = x @ p["classifier/kernel"][:, 1:IDS]
  np.testing.assert_allclose(scores[:, 0, 1:IDS], expected, atol=1e-5)


def test_a_class_is_decoded_from_both_texts():
  m = make("num_layers = 1", DUAL)
  with m.tf_graph.as_default():
    logits, _ = m.model.call_simple(m.ids(SIX), m.ids([[1]] * 4), False, mode="eval")
    ((scores, best),), _ = m.run(logits, m.model.decode(m.ids(SIX)), scale=0.7)
  np.testing.assert_array_equal(best, scores.argmax(-1))


def test_both_texts_share_the_encoder_and_are_read_apart():
  m = make("num_layers = 1", DUAL, "DualEncoderClassifier.interaction = False")
  alone = make("num_layers = 1")
  names = []
  for each, inputs in ((m, SIX), (alone, SIX[:, :3])):
    with each.tf_graph.as_default():
      each.model.call_simple(each.ids(inputs), each.ids([[1]] * 4), True)
    names.append({v.name for v in each.graph.all_variables})
  assert names[0] == names[1]
  with m.tf_graph.as_default():
    swapped = np.concatenate([SIX[:, 3:], SIX[:, :3]], 1)
    pooled = [m.model._pooled(m.ids(ids), False, "eval", FLOAT32, 1)[0]
              for ids in (SIX, swapped)]
    (found,), _ = m.run(*pooled, scale=0.3)
  np.testing.assert_allclose(found[0][:, ::-1], found[1], atol=1e-5)
  assert np.abs(found[0][:, 0] - found[0][:, 1]).max() > 1e-3


@pytest.mark.parametrize("binding, inputs, message", [
    ("DualEncoderClassifier.interaction = 'NLI'", SIX,
     "`DualEncoderClassifier.interaction` is 'NLI' but must be True or False"),
    ("DualEncoderClassifier.pooling = 'max'", SIX,
     "`DualEncoderClassifier.pooling` is 'max' but must be one of"),
    ("", INPUTS, "gives the inputs 7 ids, but DualEncoderClassifier reads two texts"),
])
def test_a_wrong_parameter_or_length_is_named(binding, inputs, message):
  with pytest.raises(ValueError, match=message):
    m = make(DUAL, binding)
    with m.tf_graph.as_default():
      step(m, inputs=inputs)
