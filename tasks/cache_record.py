"""Records what a seqio cache was made with, and compares it when the cache is read.

A cache holds ids. With another vocabulary these ids stand for other words, and without
this record training would continue with the wrong words.
"""

import itertools
import json
import os
from typing import Any

from absl import logging
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import model_folder
import tensorflow.compat.v2 as tf

_NAME = "made_with.json"
_EXAMPLES = 8  # The number of examples to compare if a cache has no record.
_REMEDY = (
    "make the cache again by `python -m synthesizer_mtf.tasks.cache` with the settings "
    "of the training, train with those of the cache, or leave out `use_cached`.")


def made_with(task: seqio.Task) -> dict[str, Any]:
  """Returns what the ids of a task depend on, to be written as JSON.

  Args:
    task: a task. Its source may have a method `made_with`, which returns a dict.
  """
  made = {f"vocabulary of {name}": _identity(feature.vocabulary)
          for name, feature in task.output_features.items()}
  of_source = getattr(task.source, "made_with", dict)()
  return {**made, **of_source}


def _identity(vocabulary):
  return getattr(vocabulary, "identity", lambda: str(vocabulary))()


def write(task: seqio.Task, folder: str) -> None:
  """Writes the record of a cache that has just been made into its folder."""
  model_folder.write_whole(
      os.path.join(folder, _NAME), json.dumps(made_with(task), indent=2) + "\n")


def check(task: seqio.Task, split: str) -> None:
  """Compares the cache of a task with what the task would make now.

  Args:
    task: a task that is cached.
    split: the name of the split that is about to be read.

  Raises:
    ValueError: cache and task differ, or the cache has no such split.
  """
  folder = task.cache_dir
  if not tf.io.gfile.exists(seqio.get_cached_info_path(folder, split)):
    raise checks.Error(f"the cache {folder!r} of task {task.name!r} has no split "
                       f"{split!r}; choose another, or {_REMEDY}")
  path = os.path.join(folder, _NAME)
  if not tf.io.gfile.exists(path):
    _check_examples(task, folder, split)
    return
  with tf.io.gfile.GFile(path) as f:
    then = json.load(f)
  now = made_with(task)
  for what in sorted({*then, *now}):
    if then.get(what) != now.get(what):
      raise checks.Error(
          f"the cache {folder!r} of task {task.name!r} was made with another "
          f"{what}: {then.get(what)}, and now it is {now.get(what)}; {_REMEDY}")


def _check_examples(task, folder, split):
  """Encodes the text of a few examples of a cache that has no record."""
  files = tf.io.gfile.glob(
      f"{seqio.get_cached_tfrecord_prefix(folder, split)}-*")
  records = itertools.chain.from_iterable(
      map(tf.compat.v1.io.tf_record_iterator, sorted(files)))
  for record in itertools.islice(records, _EXAMPLES):
    _check_example(task, folder, tf.train.Example.FromString(record))
  logging.warning(
      "The cache %r of task %r has no record of what it was made with, as caches of "
      "older versions. Its first examples are those that the task would make now; "
      "to have all of them checked, make it again.", folder, task.name)


def _check_example(task, folder, example):
  features = example.features.feature
  for name, feature in task.output_features.items():
    text = features[f"{name}_pretokenized"].bytes_list.value
    if name in features and text:
      ids = list(features[name].int64_list.value)
      now = list(feature.vocabulary.encode(text[0].decode("utf-8")))
      if ids != now:
        raise checks.Error(
            f"the cache {folder!r} of task {task.name!r} was made with another "
            f"vocabulary: there {text[0][:40]!r}... is {ids[:5]}..., and now it is "
            f"{now[:5]}...; {_REMEDY}")
