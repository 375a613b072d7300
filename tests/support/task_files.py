"""Helpers for the tests of tasks on a user's own files."""

import gzip
import tempfile

import gin
import seqio
import tensorflow.compat.v2 as tf

LENGTHS = {"inputs": 32, "targets": 16}


def bind(parameter, value):
  """Binds a parameter of the tasks in gin."""
  gin.parse_config(f"synthesizer_mtf.tasks.{parameter} = {value!r}")


def write(folder, files):
  """Writes files, by their names, into a new folder; returns the glob of all of them.

  A text is compressed if its file's name ends in .gz. Bytes are written as they are.
  """
  new = tempfile.mkdtemp(dir=folder)
  for name, content in files.items():
    if isinstance(content, str):
      content = content.encode()
      content = gzip.compress(content) if name.endswith(".gz") else content
    with open(f"{new}/{name}", "wb") as f:
      f.write(content)
  return f"{new}/*"


def own(kind, folder, files):
  """Writes the training files of "text" or "pairs"; returns the texts or the pairs."""
  bind(f"{kind}.train", write(folder, files))
  return rows(kind)


def rows(kind, split="train"):
  """Returns the texts or the pairs that the source of the user's files reads."""
  task, keys = {"text": ("synth_text_lm", ["text"]),
                "pairs": ("synth_text_pairs", ["inputs", "targets"])}[kind]
  source = seqio.TaskRegistry.get(task).source
  values = [tuple(row[key].decode() for key in keys) for row in source.get_dataset(
      split, shuffle=False).as_numpy_iterator()]
  assert source.num_input_examples(split) == len(values)
  return [text for text, in values] if kind == "text" else values


def examples(name, split="train", lengths=None):
  """Returns the examples of a task, in order, as dicts of NumPy arrays."""
  task = seqio.get_mixture_or_task(name)
  dataset = task.get_dataset(lengths or LENGTHS, split, shuffle=False)
  return list(dataset.as_numpy_iterator())


def texts(name, split="train"):
  """Returns the (inputs, targets) of a task's examples, as strings."""
  keys = ("inputs_pretokenized", "targets_pretokenized")
  return [tuple(example[key].decode() for key in keys)
          for example in examples(name, split)]


def preprocessed(name, row, lengths):
  """Returns the example that a task makes of a row of its data set."""
  task = seqio.TaskRegistry.get(name)
  alone = seqio.Task(
      name, output_features=task.output_features,
      preprocessors=task.preprocessors, source=seqio.FunctionDataSource(
          lambda split, shuffle_files, seed=None: (
              tf.data.Dataset.from_tensors(row)), splits=["train"]))
  example, = alone.get_dataset(lengths, "train", shuffle=False).as_numpy_iterator()
  return example


def scores(name, *rows):
  """The scores that a task gives to rows (target text, prediction, more features)."""
  task = seqio.TaskRegistry.get(name)
  targets, predictions = [], []
  for target, prediction, *features in rows:
    example = {"targets_pretokenized": target.encode(),
               **(features[0] if features else {})}
    targets.append(task.postprocess_fn(target, example=example, is_target=True))
    predictions.append(task.postprocess_fn(prediction, example=example))
  return {key: value for metric in task.metric_fns
          for key, value in metric(targets, predictions).items()}
