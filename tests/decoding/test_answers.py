"""Decoders give several answers, with the log-likelihoods of a pass over all tokens."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import models
from support.decoding import parse
from support.decoding import recorded
from synthesizer_mtf.t5 import answer_recorder
import tensorflow.compat.v1 as tf

EOS = 1
INPUTS = [[5, 9, 3, 7, 11, 2, EOS], [8, 4, EOS, 0, 0, 0, 0]]


def log_likelihoods(logits, ids, first=0):
  """NumPy's sums of log-softmax over tokens up to the first EOS, and their numbers."""
  logits = logits.astype(np.float64)
  table = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(
      -1, keepdims=True)) - logits.max(-1, keepdims=True)
  tokens = np.take_along_axis(table, ids[..., None], -1)[..., 0]
  before = np.cumsum(ids == EOS, -1) - (ids == EOS) == 0
  before &= np.arange(ids.shape[-1]) >= np.asarray(first)[..., None]
  return (tokens * before).sum(-1), before.sum(-1)


def run(m, decode, number, logits_of, scale=1.0):
  """The ids, scores, lengths, and the logits of a pass over each of the answers."""
  with m.tf_graph.as_default():
    ids, scores, lengths = recorded(decode, number)
    one = [mtf.gather(ids, mtf.constant(ids.mesh, i, dtype=tf.int32),
                      ids.shape.dims[1]) for i in range(number)]
    with tf.variable_scope("", reuse=True):
      logits = [logits_of(tokens) for tokens in one]
    (values,), _ = m.run(ids, scores, lengths, *logits, scale=scale)
  ids, scores, lengths, *logits = values
  return ids, scores, lengths, np.stack(logits, 1)


@pytest.mark.parametrize("how", [
    {"beam_size": 4, "alpha": 0.6, "decode_length_constant": 20}, {"temperature": 0.7},
    {}], ids=["beams", "samples", "greedy"])
def test_scores_equal_numpys_log_softmax_of_the_models_logits(how):
  number = 3 if how else 1
  parse("R+V", "num_layers = 1")
  m = models.Model()
  inputs = m.ids(INPUTS)

  def logits_of(ids):
    return m.model.call_simple(inputs, ids, False, mode="eval")[0]

  ids, scores, lengths, logits = run(
      m, lambda: m.model.decode(inputs, max_decode_length=8, **how), number, logits_of)
  assert ids.shape == (2, number, 8)
  expected, tokens = log_likelihoods(logits, ids)
  np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
  np.testing.assert_array_equal(lengths, tokens)
  assert "beam_size" in how or (np.diff(scores) <= 0).all()
  assert len({tuple(row) for row in ids[0].tolist()}) == number


def test_a_language_model_scores_what_it_adds_to_its_inputs():
  parse("R+V", "num_layers = 1")
  m = models.Model("lm")
  start = np.array([[5, 9, 3, 0, 0, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0, 0]])

  def logits_of(ids):
    return m.model.call_simple(transformer.autoregressive_inputs(ids), ids, False,
                               mode="eval")[0]

  ids, scores, lengths, logits = run(
      m, lambda: m.model.sample_autoregressive(m.ids(start), temperature=1.0), 2,
      logits_of)
  expected, tokens = log_likelihoods(logits, ids, [[3], [1]])
  np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
  np.testing.assert_array_equal(lengths, tokens)
  assert (scores[:, 0] >= scores[:, 1]).all()


@pytest.mark.parametrize("how, message", [
    ({"beam_size": 2}, "number` is 3, but beam search keeps 2"),
    ({}, "number` is 3, but greedy decoding finds one")])
def test_more_answers_than_the_decoder_finds_are_an_error(how, message):
  parse("V", "num_layers = 1")
  m = models.Model()
  with m.tf_graph.as_default(), answer_recorder.recording(3):
    with pytest.raises(ValueError, match=message):
      m.model.decode(m.ids(INPUTS), max_decode_length=8, **how)
