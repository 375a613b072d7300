"""Writes caches of tasks as seqio does, but without Beam."""

import json

import seqio
import tensorflow.compat.v2 as tf


def write(task, split, folder):
  """Caches a split of a task, without a record, and makes seqio find the cache.

  `tasks.cache_record` writes the record, which says what the cache was made with.

  Args:
    task: a seqio.Task.
    split: a string.
    folder: a pathlib.Path.

  Returns:
    the folder of the task, a pathlib.Path.
  """
  cache = folder / seqio.get_task_dir_from_name(task.name)
  cache.mkdir(parents=True, exist_ok=True)
  examples = list(task.preprocess_precache(
      task.source.get_dataset(split, shuffle=False)).as_numpy_iterator())
  with tf.io.TFRecordWriter(str(cache / f"{split}.tfrecord-00000-of-00001")) as f:
    for example in examples:
      f.write(seqio.dict_to_tfexample(example).SerializeToString())
  features = {
      name: {"shape": [None] if getattr(value, "ndim", 0) else [],
             "dtype": tf.constant(value).dtype.name}
      for name, value in examples[0].items()}
  (cache / f"info.{split}.json").write_text(json.dumps(
      {"num_shards": 1, "features": features, "seqio_version": "0.0.1"}))
  (cache / f"stats.{split}.json").write_text(json.dumps({"examples": len(examples)}))
  (cache / "COMPLETED").touch()
  seqio.add_global_cache_dirs([str(folder)])
  return cache
