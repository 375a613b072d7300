"""The scores of tasks by hand: classification, questions, translation and summaries."""

from unittest import mock

import numpy as np
import pytest
import seqio
from support import prepared
from support.task_files import scores

NONSENSE = "banana"
ACCURACY = [
    "glue_sst2", "glue_mnli", "glue_mnli_matched", "glue_mnli_mismatched", "glue_qnli",
    "glue_rte", "glue_wnli", "super_glue_boolq", "super_glue_copa", "super_glue_rte",
    "super_glue_wic", "ag_news", "imdb_reviews"]
YES, NO = "acceptable", "unacceptable"
FIRST, SECOND = [{"idx/question": number} for number in (7, 8)]
RIGHT, WRONG = {"label": 1}, {"label": 0}
OF_CAT = {"answers": [b"the cat", b"a big cat"]}


def query(number, *answers):
  return {"idx/passage": 1, "idx/query": number,
          "answers": [answer.encode() for answer in answers]}


def precisions(*of_n_grams):
  """A BLEU without a brevity penalty."""
  return 100 * np.prod(of_n_grams) ** (1 / 4)


# Rows (target, prediction, further features) of tasks, and their scores.
ROWS = [
    # 1 true positive, 1 false negative and 2 true negatives.
    ("glue_cola", [(YES, YES), (YES, NO), (NO, NO), (NO, NO)],
     {"matthews_corrcoef": 100 * 2 / (1 * 2 * 2 * 3) ** 0.5}),
    # 2 true positives, 1 false negative: F1 is 4 / 5.
    *[(name, [(yes, yes), (yes, NONSENSE), (f"not_{yes}", f"not_{yes}"), (yes, yes)],
       {"f1": 80, "accuracy": 75})
      for name, yes in (("glue_mrpc", "equivalent"), ("glue_qqp", "duplicate"))],
    ("glue_stsb", [("1.0", "1.0"), ("2.0", "2.0"), ("3.0", "4.0")],
     {"pearson_corrcoef": 300 / (28 / 3) ** 0.5, "spearman_corrcoef": 100}),
    # Nonsense counts as -1, which is worse than any score.
    ("glue_stsb", [("1.0", "1.0"), ("2.0", "2.0"), ("3.0", NONSENSE)],
     {"pearson_corrcoef": -200 / (28 / 3) ** 0.5, "spearman_corrcoef": -50}),
    ("super_glue_cb", [
        ("entailment", "entailment"), ("contradiction", "contradiction"),
        ("neutral", "neutral"), ("neutral", NONSENSE)],
     {"mean_3class_f1": 100 * (1 + 1 + 2 / 3) / 3, "accuracy": 75}),
    # F1 of answers, and exact match of questions.
    ("super_glue_multirc", [("True", "True", FIRST), ("False", "False", FIRST),
                            ("True", "True", SECOND), ("True", NONSENSE, SECOND)],
     {"f1": 80, "exact_match": 50}),
    # The best answer; a query counts once.
    ("super_glue_record", [
        ("Y", "x", query(1, "Y", "X")), ("X", "x", query(1, "Y", "X")),
        ("The big bank", "bank", query(2, "The big bank")), ("Z", "", query(3, "Z")),
        ("Z", NONSENSE, query(4, "Z"))], {"em": 25, "f1": 100 * (1 + 2 / 3) / 4}),
    # Whether the noun was predicted.
    ("super_glue_wsc", [("Tom", "the tom", RIGHT), ("Bob", "Tom", WRONG),
                        ("Tom", "", RIGHT), ("Bob", "", WRONG),
                        ("Tom", NONSENSE, RIGHT)], {"accuracy": 40}),
    # The best of all answers.
    ("squad", [("the cat", "Big Cat.", OF_CAT), ("the cat", "cat dog", OF_CAT),
               ("the cat", "", OF_CAT)],
     {"em": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3}),
    # One wrong word; the lengths agree.
    *[(name, [("a b c d e f", "a b c d e x")], dict.fromkeys(
        ("bleu", "tokenized_bleu"), precisions(5 / 6, 4 / 5, 3 / 4, 2 / 3)))
      for name in ("wmt14_ende", "wmt14_enfr")],
    # Missing words: a brevity penalty, and all precisions 1.
    ("wmt14_ende", [("a b c d e f g h", "a b c d")], dict.fromkeys(
        ("bleu", "tokenized_bleu"), 100 * np.exp(1 - 8 / 4))),
    # ein gut ##AT##-##AT## gemeintes Rat , ja ja . has one wrong token of 9.
    ("wmt14_ende",
     [("ein gut-gemeinter Rat, ja ja .", "ein gut-gemeintes Rat, ja ja .")],
     {"tokenized_bleu": precisions(8 / 9, 6 / 8, 4 / 7, 2 / 6), "bleu": mock.ANY}),
    # l'or is one token, and three in the other BLEU.
    ("wmt14_enfr", [("a b c d l'an", "a b c d l'or")],
     {"tokenized_bleu": precisions(4 / 5, 3 / 4, 2 / 3, 1 / 2),
      "bleu": precisions(6 / 7, 5 / 6, 4 / 5, 3 / 4)}),
    ("wmt14_ende", [("a b c d e", "")], {"bleu": 0, "tokenized_bleu": 0}),
    ("cnn_dailymail", [("a b", "")],
     {"rouge1": 0, "rouge2": 0, "rougeL": 0, "rougeLsum": 0}),
    # No pair of neighbours is common; the longest common subsequence has 3 words.
    ("cnn_dailymail", [("a b c d", "a c b d")],
     {"rouge1": 100, "rouge2": 0, "rougeL": 75, "rougeLsum": 75})]


def test_scores_equal_those_by_hand_and_count_nonsense_as_wrong():
  labels = {name: prepared.BY_TASK[f"synth_{name}"].targets for name in ACCURACY}
  for name, rows, expected in [*ROWS, *[
      (name, [(label, label)] * 3 + [(label, NONSENSE), (label, "")], {"accuracy": 60})
      for name, label in labels.items()]]:
    assert scores(f"synth_{name}", *rows) == {
        metric: value if value is mock.ANY else pytest.approx(value)
        for metric, value in expected.items()}, name
  assert seqio.TaskRegistry.get("synth_glue_cola").postprocess_fn(NONSENSE) == -1


def test_rouge_of_the_same_predictions_is_the_same_each_time():
  rows = [(f"a b c d {i}", " ".join("abcd"[:i % 5]) + f" {i}") for i in range(20)]
  np.random.seed(4)
  first, drawn = scores("synth_cnn_dailymail", *rows), np.random.rand()
  assert scores("synth_cnn_dailymail", *rows) == first
  np.random.seed(4)
  assert np.random.rand() == drawn  # Other random numbers stay the same.


def test_labels_are_in_the_order_of_tfds(tasks_to_read):
  task = seqio.TaskRegistry.get("synth_ag_news")
  names = task.source.tfds_dataset.info.features["label"].names
  assert [task.postprocess_fn(name) for name in names] == [0, 1, 2, 3]
  task = seqio.TaskRegistry.get("synth_imdb_reviews")
  assert task.source.tfds_dataset.info.features["label"].names == ["neg", "pos"]
  assert [task.postprocess_fn(x) for x in ("negative", "positive")] == [0, 1]
