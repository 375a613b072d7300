"""The metrics of translation, summarisation and classification."""

import numpy as np
import pytest
import seqio


def scores(name, targets, predictions):
  task = seqio.TaskRegistry.get(name)
  found = {}
  for metric in task.metric_fns:
    found.update(metric([task.postprocess_fn(t, example={}, is_target=True)
                         for t in targets],
                        [task.postprocess_fn(p, example={})
                         for p in predictions]))
  return found


def test_bleu_by_hand():
  # One wrong word: precisions 5/6, 4/5, 3/4, 2/3; the lengths agree.
  expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
  for name in ("synth_wmt14_ende", "synth_wmt14_enfr"):
    assert scores(name, ["a b c d e f"], ["a b c d e x"]) == {
        "bleu": pytest.approx(expected), "tokenized_bleu": pytest.approx(expected)}
  # Missing words: a brevity penalty of exp(1 - 8 / 4), and all precisions 1.
  found = scores("synth_wmt14_ende", ["a b c d e f g h"], ["a b c d"])
  assert found["bleu"] == found["tokenized_bleu"] == pytest.approx(36.788, 1e-4)


def test_tokenized_bleu_splits_compounds_and_punctuation():
  found = scores("synth_wmt14_ende", ["ein gut-gemeinter Rat, ja ja ."],
                 ["ein gut-gemeintes Rat, ja ja ."])
  # ein gut ##AT##-##AT## gemeintes Rat , ja ja . has one wrong token of 9.
  assert found["tokenized_bleu"] == pytest.approx(
      100 * (8 / 9 * 6 / 8 * 4 / 7 * 2 / 6) ** 0.25)


def test_the_two_bleus_tokenize_differently():
  found = scores("synth_wmt14_enfr", ["a b c d l'an"], ["a b c d l'or"])
  assert found["tokenized_bleu"] == pytest.approx(  # l'or is one token
      100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
  assert found["bleu"] == pytest.approx(  # and three
      100 * (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25)


def test_empty_predictions_score_nothing():
  assert scores("synth_wmt14_ende", ["a b c d e"], [""]) == {
      "bleu": 0, "tokenized_bleu": 0}
  assert set(scores("synth_cnn_dailymail", ["a b"], [""]).values()) == {0}


def test_rouge_of_the_same_predictions_is_the_same_each_time():
  targets = [f"a b c d {i}" for i in range(20)]
  predictions = [" ".join("abcd"[:i % 5]) + f" {i}" for i in range(20)]
  np.random.seed(4)
  first, drawn = scores("synth_cnn_dailymail", targets, predictions), np.random.rand()
  assert scores("synth_cnn_dailymail", targets, predictions) == first
  np.random.seed(4)
  assert np.random.rand() == drawn  # Other random numbers stay the same.


def test_rouge_counts_words_pairs_and_the_longest_common_subsequence():
  found = scores("synth_cnn_dailymail", ["a b c d"], ["a c b d"])
  # No pair of neighbours is common; the longest common subsequence has 3 words.
  assert found["rouge1"] == pytest.approx(100)
  assert found["rouge2"] == pytest.approx(0)
  assert found["rougeL"] == found["rougeLsum"] == pytest.approx(75)


def test_labels_are_in_the_order_of_tfds(tasks_to_read):
  task = seqio.TaskRegistry.get("synth_ag_news")
  names = task.source.tfds_dataset.info.features["label"].names
  assert [task.postprocess_fn(name) for name in names] == [0, 1, 2, 3]
  task = seqio.TaskRegistry.get("synth_imdb_reviews")
  assert task.source.tfds_dataset.info.features["label"].names == ["neg", "pos"]
  assert [task.postprocess_fn(x) for x in ("negative", "positive")] == [0, 1]
