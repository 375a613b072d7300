"""C4, LM1B and their perplexities."""

import math
import types

import numpy as np
import pytest
from support import prepared
from support.task_files import examples
from synthesizer_mtf.tasks import perplexity
from synthesizer_mtf.tasks import vocabulary
import tensorflow.compat.v1 as tf

EOS = 1
PIECES = 500  # of the vocabulary; sentinels follow


def test_c4_is_cut_into_512_inputs_and_114_targets_with_15_percent_of_noise(
    tasks_to_read):
  example, *_ = examples("synth_c4_span_corruption",
                         lengths={"inputs": 512, "targets": 114})
  inputs, targets = example["inputs"], example["targets"]
  assert (len(inputs), len(targets)) == (512, 114)
  sentinels = [ids[ids >= PIECES].tolist() for ids in (inputs, targets)]
  # 85 of the 568 tokens are noise, in 28 spans of 3 on average.
  assert sentinels[0] == sentinels[1] == list(range(599, 599 - 28, -1))
  assert sum((inputs < PIECES) & (inputs != EOS)) == 568 - 85
  assert sum((targets < PIECES) & (targets != EOS)) == 85
  assert inputs[-1] == targets[-1] == EOS


def test_c4_needs_targets_that_are_long_enough(tasks_to_read):
  with pytest.raises(ValueError, match=r"\(114\) is greater than"):
    examples("synth_c4_span_corruption", lengths={"inputs": 512, "targets": 113})


def test_lm1b_has_a_sentence_in_each_example_which_is_cut_if_it_is_long(tasks_to_read):
  ids = vocabulary.TaskVocabulary().encode(prepared.SENTENCE["text"])
  for split, length, expected in (("test", 64, ids), ("train", 4, ids[:3])):
    rows = examples("synth_lm1b", split, {"targets": length})
    assert [e["targets"].tolist() for e in rows] == [expected + [EOS]] * 3
    assert all(set(e) == {"targets", "targets_pretokenized"} for e in rows)


def test_words_are_counted_as_spaces_separate_them(tasks_to_read):
  chosen = vocabulary.TaskVocabulary()
  lines = ["The statement is evaluated .", "one", "\u4e2d\u6587 x\u4e2dx",
           "a-b c.d, e"]
  ids = [chosen.encode(line) + [EOS] for line in lines]
  batch = np.zeros((len(ids) + 1, max(map(len, ids)) + 2), np.int32)
  for row, tokens_of_row in zip(batch, ids):
    row[:len(tokens_of_row)] = tokens_of_row
  tokens, words = perplexity.count(batch, perplexity.words_begun(chosen))
  assert tokens.tolist() == [len(tokens_of_row) for tokens_of_row in ids] + [0]
  assert words.tolist() == [len(line.split()) + 1 for line in lines] + [0]


def test_a_cut_word_counts_as_a_word_and_a_sentinel_does_not(tasks_to_read):
  chosen = vocabulary.TaskVocabulary()
  ids = chosen.encode("the zxqv")[:-1]  # "the", "z", "x", "q"
  assert len(ids) > 2
  tokens, words = perplexity.count(
      np.array([ids + [599, 598, EOS]]), perplexity.words_begun(chosen))
  assert (tokens[0], words[0]) == (len(ids) + 3, 2 + 1)


def test_a_sentinel_anywhere_in_the_vocabulary_is_no_word():
  pieces = ["<pad>", "</s>", "\u2581<extra_id_1>", "<extra_id_0>", "\u2581a", "b"]
  model = types.SimpleNamespace(
      vocab_size=6, extra_ids=2, tokenizer=types.SimpleNamespace(
          id_to_piece=pieces.__getitem__))
  assert perplexity.words_begun(model).tolist() == [0, 1, 0, 0, 1, 0]


def test_perplexities_divide_the_loss_by_tokens_and_by_words():
  values = perplexity.perplexities([-6.0, -4.0, -99.0], [3, 2, 0], [2, 2, 0])
  assert values == {"perplexity_per_token": pytest.approx(math.exp(10 / 5)),
                   "perplexity_per_word": pytest.approx(math.exp(10 / 4)),
                   "tokens": 5, "words": 4}
  with pytest.raises(ValueError, match="utils.run.dataset_split"):
    perplexity.perplexities([0.0], [0], [0])


class Estimator:
  """Predicts a score for each example, as a TPUEstimator does."""

  def predict(self, input_fn, checkpoint_path):
    del input_fn
    step = int(checkpoint_path.split("-")[-1])
    return iter([{"scores": -step * 1.0}, {"scores": 0.0}])


def test_every_checkpoint_is_evaluated_and_written(
    tasks_to_read, tmp_path, monkeypatch):
  for step in (5, 10):
    (tmp_path / f"model.ckpt-{step}.index").touch()
  chosen = vocabulary.TaskVocabulary()
  ids = chosen.encode("the statement") + [EOS]
  batch = np.array([ids, [0] * len(ids)])
  def input_fn(params):
    return tf.data.Dataset.from_tensor_slices({"targets": batch[:, None]})
  asked = []
  words_begun = perplexity.words_begun
  monkeypatch.setattr(perplexity, "words_begun",
                      lambda model: asked.append(model) or words_begun(model))
  with tf.Graph().as_default():
    measures = perplexity.word_perplexity(
        Estimator(), input_fn, "all", str(tmp_path), chosen)
  assert len(asked) == 1  # It asks for each of a vocabulary's pieces.
  assert set(measures) == {5, 10}
  for step, measure in measures.items():  # Two words and the end.
    assert measure["perplexity_per_word"] == pytest.approx(math.exp(step / 3))
  path, = (tmp_path / "perplexity").iterdir()
  tags = [(event.step, value.tag)
          for event in tf.train.summary_iterator(str(path))
          for value in event.summary.value]
  assert (10, "eval/perplexity_per_token") in tags and len(tags) == 8
