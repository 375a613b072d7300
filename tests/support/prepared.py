"""Writes TFDS directories with a few rows each, by the real builders.

`CASES` has a row of every task that reads TFDS, and the text that the task must make of
it. The texts follow the appendix of T5's paper (arXiv:1910.10683).
"""

import dataclasses
from unittest import mock

import tensorflow.compat.v2 as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core.utils import gcs_utils


@dataclasses.dataclass
class Case:
  """A task, its data set, a row of the data set, and the text of this row."""
  task: str
  tfds_name: str
  row: dict
  inputs: str
  targets: str
  splits: tuple = ("train", "validation")


PAIR = {"sentence1": "A b.", "sentence2": "C d."}
MNLI = {"hypothesis": "H.", "premise": "P.", "label": 2}
MNLI_TEXT = ("mnli hypothesis: H. premise: P.", "contradiction")
HELD_OUT = ("validation", "test")


def glue(name, row, inputs, targets, splits=("train", "validation")):
  return Case(f"synth_glue_{name}", f"glue/{name}:2.0.0", row, inputs, targets,
              splits)


def super_glue(name, row, inputs, targets, config=None):
  return Case(f"synth_super_glue_{name}",
              f"super_glue/{config or name}:1.0.2", row, inputs, targets)


GLUE = [
    glue("cola", {"sentence": "It sat.", "label": 1},
         "cola sentence: It sat.", "acceptable"),
    glue("sst2", {"sentence": "so dull", "label": 0},
         "sst2 sentence: so dull", "negative"),
    glue("mrpc", {**PAIR, "label": 1},
         "mrpc sentence1: A b. sentence2: C d.", "equivalent"),
    glue("stsb", {**PAIR, "label": 1.87},
         "stsb sentence1: A b. sentence2: C d.", "1.8"),
    glue("qqp", {"question1": "Why?", "question2": "How?", "label": 1},
         "qqp question1: Why? question2: How?", "duplicate"),
    glue("mnli", MNLI, *MNLI_TEXT, splits=("train",)),
    glue("mnli_matched", MNLI, *MNLI_TEXT, splits=HELD_OUT),
    glue("mnli_mismatched", MNLI, *MNLI_TEXT, splits=HELD_OUT),
    glue("qnli", {"question": "Why?", "sentence": "So.", "label": 1},
         "qnli question: Why? sentence: So.", "not_entailment"),
    glue("rte", {**PAIR, "label": 0},
         "rte sentence1: A b. sentence2: C d.", "entailment"),
    glue("wnli", {**PAIR, "label": 1},
         "wnli sentence1: A b. sentence2: C d.", "entailment"),
    # This data set has only a test split, whose labels are hidden.
    glue("ax", {**MNLI, "label": -1, "idx": 5},
         "mnli hypothesis: H. premise: P.", "<unk>", splits=("test",)),
]

SUPER_GLUE = [
    super_glue("boolq", {"question": "is it", "passage": "It is.", "label": 1},
               "boolq passage: It is. question: is it", "True"),
    super_glue("cb", {"hypothesis": "H.", "premise": "P.", "label": 1},
               "cb hypothesis: H. premise: P.", "contradiction"),
    super_glue("copa", {"premise": "P.", "choice1": "A.", "choice2": "B.",
                        "question": "cause", "label": 1},
               "copa choice1: A. choice2: B. premise: P. question: cause",
               "choice2"),
    super_glue("multirc", {"paragraph": "<b>Sent 1: </b>It sat.<br>So.",
                           "question": "Who?", "answer": "It.", "label": 1,
                           "idx": {"paragraph": 3, "question": 7, "answer": 9}},
               "multirc question: Who? answer: It. paragraph: Sent 1: It sat. "
               "So.", "True"),
    super_glue("record", {"passage": "A b.\n@highlight\nC d",
                          "query": "@placeholder is.", "entities": ["X", "Y"],
                          "answers": ["Y", "X"],
                          "idx": {"passage": 3, "query": 7}},
               "record query: @placeholder is. entities: X, Y passage: A b. "
               "C d", "Y"),
    super_glue("rte", {"hypothesis": "H.", "premise": "P.", "label": 1},
               "rte hypothesis: H. premise: P.", "not_entailment"),
    super_glue("wic", {**PAIR, "word": "bank", "label": 0},
               "wic sentence1: A b. sentence2: C d. word: bank", "False"),
    super_glue("wsc", {"text": "Bob asked Tom if he can come .",
                       "span1_text": "Tom", "span1_index": 2,
                       "span2_text": "he", "span2_index": 4, "label": 1},
               "wsc: Bob asked Tom if *he* can come .", "Tom", "wsc.fixed"),
    Case("synth_super_glue_axb", "super_glue/axb:1.0.2",
         {**PAIR, "label": -1, "idx": 5},
         "rte sentence1: A b. sentence2: C d.", "<unk>", ("test",)),
    Case("synth_super_glue_axg", "super_glue/axg:1.0.2",
         {"hypothesis": "H.", "premise": "P.", "label": -1, "idx": 5},
         "rte hypothesis: H. premise: P.", "<unk>", ("test",)),
    Case("synth_dpr", "definite_pronoun_resolution:1.1.0",
         {"sentence": "Bob asked Tom if he can come.", "pronoun": "he",
          "candidates": ["Bob", "Tom"], "label": 1},
         "wsc: Bob asked Tom if *he* can come.", "Tom", ("train", "test")),
]

OTHERS = [
    Case("synth_squad", "squad/v1.1:3.0.0",
         {"question": "Who?", "context": "It sat.",
          "answers": {"text": ["It", "it"], "answer_start": [0, 0]}},
         "question: Who ? context: It sat . ", "It"),
    Case("synth_wmt14_ende", "wmt14_translate/de-en:1.0.0",
         {"en": "That is good.", "de": "Das ist gut."},
         "translate English to German: That is good.", "Das ist gut.",
         ("train", "validation", "test")),
    Case("synth_wmt14_enfr", "wmt14_translate/fr-en:1.0.0",
         {"en": "That is good.", "fr": "C'est bon."},
         "translate English to French: That is good.", "C'est bon.",
         ("train", "validation", "test")),
    Case("synth_xsum", "xsum:1.1.0",
         {"document": "It rained all day.", "summary": "Rain."},
         "summarize: It rained all day.", "Rain.", ("train", "validation", "test")),
    Case("synth_cnn_dailymail", "cnn_dailymail:3.4.0",
         {"article": "It sat . It ran .", "highlights": "It sat ."},
         "summarize: It sat . It ran .", "It sat .",
         ("train", "validation", "test")),
    Case("synth_ag_news", "ag_news_subset:1.0.0",
         {"title": "It won", "description": "It ran.", "label": 1},
         "ag_news title: It won description: It ran.", "Sports",
         ("train", "test")),
    Case("synth_imdb_reviews", "imdb_reviews/plain_text:1.0.0",
         {"text": "So good.", "label": 1},
         "imdb_reviews text: So good.", "positive", ("train", "test")),
]

CASES = GLUE + SUPER_GLUE + OTHERS
BY_TASK = {case.task: case for case in CASES}

# The rows of C4 and LM1B. Their tests check many tokens instead of a row's text.
DOCUMENT = {"text": "The statement is evaluated for each object of the list. "
                    * 24}
SENTENCE = {"text": "The statement is evaluated ."}


def without_cloud_storage():
  """Keeps TFDS from searching its bucket for a data set that is not prepared."""
  return mock.patch.object(gcs_utils, "_is_gcs_disabled", True)


def write(tfds_name, rows, data_dir):
  """Writes a data set.

  Args:
    tfds_name: the name, configuration and version of the data set.
    rows: a dict from splits to lists of rows; a row may leave out features.
    data_dir: a string.
  """
  with without_cloud_storage():
    builder = tfds.builder(tfds_name, data_dir=data_dir)
  features = builder.info.features

  def generate(split):
    for i, row in enumerate(rows[split]):
      yield i, {name: row.get(name, _empty(feature))
                for name, feature in features.items()}

  builder._split_generators = (
      lambda dl_manager: {split: generate(split) for split in rows})
  with without_cloud_storage():
    builder.download_and_prepare()


def _empty(feature):
  """Returns the value of a feature that a row leaves out."""
  if isinstance(feature, tfds.features.FeaturesDict):
    return {name: _empty(part) for name, part in feature.items()}
  return "" if feature.tf_dtype == tf.string else 0


def write_all(data_dir):
  """Writes the data sets of all tasks, two rows in each split."""
  for case in CASES:
    write(case.tfds_name, {s: [case.row] * 2 for s in case.splits}, data_dir)
  write("c4/en:3.1.0", {s: [DOCUMENT] * 3 for s in ("train", "validation")},
        data_dir)
  write("lm1b:1.1.0", {s: [SENTENCE] * 3 for s in ("train", "test")}, data_dir)
