"""Decodes with whole models, and compares the results with a pass over all tokens."""

import mesh_tensorflow as mtf
import pytest
from support import cases
from support import models
from synthesizer_mtf.t5 import answer_recorder
import tensorflow.compat.v1 as tf

EOS = 1


def parse(attention, *bindings, files=()):
  """Parses gin for a tiny model.

  Args:
    attention: a notation for all blocks; or a list with an entry for each block; or
      two lists, for the encoder and the decoder.
    *bindings: further lines.
    files: gin files.
  """
  if isinstance(attention, tuple):
    chosen, names = models.blocks(*attention), sum(attention, [])
  else:
    names = [attention] if isinstance(attention, str) else attention
    chosen = [f"synthesizer_stack.attention = {models.entries(names)}",
              f"num_layers = {len(names)}"] if names is attention else [
                  f"synthesizer_stack.attention = {attention!r}"]
  models.parse_gin(files, models.TINY + sum(map(cases.bindings, names), []) + [
      *chosen, "Unitransformer.shared_embedding_and_softmax_weights = False",
      *bindings])


def recorded(decode, number):
  """The `Answers` that a function decodes, as Mesh tensors."""
  calls = []
  record = answer_recorder.Recorder.record

  def keep(self, call):
    calls.append(call)
    return record(self, call)

  with pytest.MonkeyPatch.context() as patch, answer_recorder.recording(number):
    patch.setattr(answer_recorder.Recorder, "record", keep)
    decode()
  return calls.pop()


def until_eos(ids):
  """The ids of each row up to the first EOS or 0, which end a sequence."""
  ends = [next((i + 1 for i, t in enumerate(row) if t in (EOS, 0)), len(row))
          for row in ids]
  return [row[:end] for row, end in zip(ids.tolist(), ends)]


def check_greedy(generated, argmax, start=(0, 0)):
  compared = 0
  for row, best, first in zip(until_eos(generated), argmax, start):
    for i in range(first, len(row)):
      if row[i]:
        assert row[i] == best[i], (i, row, best)
        compared += 1
  assert compared > 3


def check_greedy_decoding():
  """Checks that the parsed model decodes the argmax of the full pass."""
  m = models.Model()
  with m.tf_graph.as_default():
    inputs = m.ids([[5, 9, 3, 7, 11, 2, EOS], [8, 4, EOS, 0, 0, 0, 0]])
    outputs = m.model.decode(inputs, max_decode_length=10)
    with tf.variable_scope("", reuse=True):
      logits, _ = m.model.call_simple(inputs, outputs, False, mode="eval")
    best = mtf.argmax(logits, logits.shape.dims[-1])
    (values,), _ = m.run(outputs, best, scale=1.0)
  check_greedy(*values)
