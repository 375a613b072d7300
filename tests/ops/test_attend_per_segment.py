"""Attention that is computed per example equals attention on masked rows."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from support.decoding import parse
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.fast import attend_per_segment
from synthesizer_mtf.fast import kernels
from synthesizer_mtf.fast import packed_segments
import tensorflow.compat.v1 as tf

LENGTH, TARGETS = 12, 7
# The rows: many sizes of examples; one example; ids in any order; only padding;
# padding between examples.
IDS = [
    [1] * 6 + [2] * 3 + [3] * 2 + [4],
    [1] * LENGTH,
    [7] * 5 + [2] * 3 + [90] + [0] * 3,
    [0] * LENGTH,
    [0] * 2 + [1] * 5 + [0] + [2] * 4,
]
TARGET_IDS = [row[:TARGETS] for row in IDS]


@pytest.fixture(autouse=True)
def all_groups(monkeypatch):
  """Packed rows have as many groups of segments as outside of the tests."""
  monkeypatch.setattr(packed_segments, "_GROUPS", 6)


class Seen(intermediates.Capture):
  """Stores the weights of each layer."""

  def __init__(self):
    self.weights = []

  def capture_weights(self, weights, mask, inputs):
    order = [*inputs.batch_dims, inputs.heads, inputs.length, inputs.memory_length]
    self.weights.append(mtf.broadcast(intermediates.normalized(weights, mask), order))


def seen_weights(tpu=False):
  """The weights of the real tokens of both stacks, and the model's operations."""
  parse((["R"], ["T+FR+FD+V"]))
  m = models.Model(tpu=tpu)
  with m.tf_graph.as_default(), intermediates.capture(Seen()) as seen:
    ids, target_ids = m.ids(IDS), m.ids(TARGET_IDS)
    tokens = [m.ids(np.array(mark) * 5 % models.VOCABULARY) for mark in (
        IDS, TARGET_IDS)]
    m.model.call_simple(*tokens, True, mode="eval", encoder_sequence_id=ids,
                        decoder_sequence_id=target_ids)
    (values,), _ = m.run(*seen.weights, scale=0.5)
  assert len(values) == 2
  return [np.moveaxis(value, 1, 2)[np.array(mark) > 0] for value, mark in zip(
      values, (IDS, TARGET_IDS))], {type(op) for op in m.graph.operations}


@pytest.mark.slow
def test_captured_weights_do_not_depend_on_how_a_mean_is_computed(
    monkeypatch):
  per_segment, kinds = seen_weights()
  assert attend_per_segment.AttendPerSegmentOperation in kinds
  monkeypatch.setattr(packed_segments, "can_be_separate", lambda context: False)
  masked, _ = seen_weights()
  monkeypatch.setattr(kernels, "_QUERY_CHUNK_SIZE", 5)
  in_chunks, _ = seen_weights()
  on_tpu, _ = seen_weights(tpu=True)
  for stack, expected in enumerate(masked):
    np.testing.assert_allclose(expected.sum(-1), 1, rtol=1e-5)
    for outputs in (per_segment, in_chunks, on_tpu):
      np.testing.assert_allclose(outputs[stack], expected, atol=1e-5)


@pytest.mark.parametrize("notation, bindings", [
    ("V", ["Unitransformer.ensemble = 2"]),
    ("R", ["SyntheticAttention.softmax = False"]),
    ("V", ["SyntheticAttention.packed = False"])])
def test_attention_that_cannot_be_computed_per_segment_is_masked(notation, bindings):
  parse(notation, "num_layers = 1", *bindings)
  m = models.Model()
  with m.tf_graph.as_default():
    ids, target_ids = m.ids(IDS), m.ids(TARGET_IDS)
    m.model.call_simple(ids, target_ids, True, mode="train", encoder_sequence_id=ids,
                        decoder_sequence_id=target_ids)
  kinds = {type(op) for op in m.graph.operations}
  assert attend_per_segment.AttendPerSegmentOperation not in kinds


def layout(ids):
  with tf.Graph().as_default(), tf.Session() as session:
    segments = packed_segments.Layout.from_ids(tf.constant(ids, tf.int32))
    return packed_segments.Layout.from_slices(session.run(segments.slices))


def test_each_example_is_in_one_group_from_its_first_token_on():
  """The tokens of an example need not be next to each other."""
  row = [7] * 2 + [2] * 2 + [7] * 3 + [90] + [2] + [0] * 3
  ids = np.array([*IDS[:2], row, *IDS[3:]])
  expected = {tuple(r * LENGTH + np.flatnonzero(row == i))
              for r, row in enumerate(ids) for i in set(row) - {0}}
  groups = layout(ids).groups
  places = [tuple(positions[seen > 0]) for group in groups
           for positions, seen in zip(group.indices, group.is_token)]
  assert len(places) == len(expected) and set(places) == expected
  sizes = [seen.sum() for group in groups for seen in group.is_token]
  assert sizes == sorted(sizes, reverse=True)
  assert sum(len(group.indices) > 0 for group in groups) > 3


def test_groups_have_few_more_pairs_of_positions_than_the_examples():
  """At most 1 / 0.7^2 times as many, apart from the padding of the last group."""
  generator = np.random.RandomState(0)
  ids = np.repeat(np.arange(1, 40), generator.randint(20, 100, 39))
  ids = ids[:8 * 128].reshape(8, 128)
  computed = sum(group.indices.shape[0] * group.indices.shape[1] ** 2
                 for group in layout(ids).groups)
  needed = sum(np.sum(row == i) ** 2 for row in ids for i in set(row))
  assert needed <= computed < 2.2 * needed
  assert computed < 8 * 128 ** 2
