"""The encoder-only tasks, and the commands that train and run a classifier."""

import numpy as np
import pytest
import seqio
from support.task_files import preprocessed
from synthesizer_mtf.tasks import labels
import tensorflow as tf
import tensorflow_datasets as tfds

ROWS = {
    "synth_ag_news_encoder": (
        {"title": "A title", "description": "Its text", "label": 3},
        b"A title Its text", b"Sci/Tech"),
    "synth_imdb_reviews_encoder": (
        {"text": "Not good.", "label": 0}, b"Not good.", b"neg"),
    "synth_glue_sst2_encoder": (
        {"sentence": "so good", "label": 1, "idx": 5}, b"so good", b"positive"),
}


def preprocess(name, row, length):
  """The features that the model reads, from a row of its data set."""
  return preprocessed(name, row, {"inputs": length, "targets": 1})


@pytest.mark.parametrize("name", ROWS)
def test_text_is_the_input_and_the_class_the_only_target(name, vocabulary):
  row, text, label = ROWS[name]
  task, example = seqio.TaskRegistry.get(name), preprocess(name, row, 64)
  assert example["inputs_pretokenized"] == text
  assert example["targets_pretokenized"] == label
  assert example["targets"].tolist() == [row["label"] + 1]
  assert example["inputs"][-1] == 1
  assert task.postprocess_fn(label.decode()) == label.decode()
  assert [m([*"abaa"], [*"abba"]) for m in task.metric_fns] == [{"accuracy": 75.0}]
  long = preprocess(name, {
      k: v * 100 if isinstance(v, str) else v for k, v in row.items()}, 9)
  assert long["inputs"].shape == (9,) and long["inputs"][-1] == 1
  assert long["targets"].tolist() == [row["label"] + 1]
  hidden = preprocess(name, {**row, "label": -1}, 64)
  assert hidden["targets"].tolist() == [0]


@pytest.mark.parametrize("name", ROWS)
def test_classes_are_those_of_the_data_set(name, tmp_path):
  task = seqio.TaskRegistry.get(name)
  builder = tfds.builder(task.source.tfds_dataset.name, data_dir=str(tmp_path))
  classes = builder.info.features["label"].names
  of_task = task.output_features["targets"].vocabulary
  # TFDS writes the names of GLUE into the prepared directory only.
  assert list(of_task.labels) == (
      classes if "glue" not in name else builder.builder_config.label_classes)


def test_label_vocabulary_decodes_what_it_encodes():
  vocabulary = labels.LabelVocabulary(["no", "yes"])
  assert vocabulary.vocab_size == 3
  assert [vocabulary.encode(s) for s in ("no", "yes", "else")] == [[1], [2], [0]]
  assert [vocabulary.decode([i]) for i in (0, 1, 2, 9)] == ["", "no", "yes", ""]
  ids = tf.stack([vocabulary.encode_tf(s) for s in ("no", "yes", "else")])
  np.testing.assert_array_equal(ids, [[1], [2], [0]])
  assert vocabulary.decode_tf(ids).numpy().tolist() == [b"no", b"yes", b""]
  assert vocabulary == labels.LabelVocabulary(("no", "yes"))
  assert vocabulary != labels.LabelVocabulary(["yes", "no"])
