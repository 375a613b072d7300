"""Tests of restarts, which resume the data at their position."""

import contextlib
import os
import shutil

import gin
import numpy as np
import pytest
import seqio
from support import checkpoint_files
from support import small_training
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.trainer.watching import data_position
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

SIZE = 60  # Examples of an epoch.


class Stop(Exception):
  """A process ends without a last checkpoint."""


class Watch(tf.train.SessionRunHook):
  """Stores the examples of each step, and stops before a save."""

  def __init__(self, stop_after):
    self.examples, self._left = [], stop_after

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(tf.get_collection("examples")[0])

  def after_run(self, run_context, run_values):
    self.examples.append(run_values.results.tolist())
    self._left -= 1
    if not self._left:
      raise Stop


def shuffled(seed=1, size=SIZE, buffer=20, batch=2):
  """An input function: shuffled, mapped at random, prefetched."""
  def input_fn(params):
    del params
    data = tf.data.Dataset.range(size).shuffle(buffer, seed=seed)
    noise = tf.data.Dataset.random(seed=seed)
    data = tf.data.Dataset.zip((data, noise)).map(lambda x, noise: {"x": x})
    return data.repeat().batch(batch, drop_remainder=True).prefetch(3)

  return input_fn


@pytest.fixture
def train(tmp_path):
  """Trains in `tmp_path`; returns the examples of each step."""
  def run(input_fn, steps, stop_after=0, folder="model"):
    watch = Watch(stop_after)
    with tf.Graph().as_default(), contextlib.suppress(Stop):
      small_training.make(str(tmp_path / folder), save_steps=4).train(
          input_fn, max_steps=steps, hooks=[watch])
    return watch.examples

  return run


def steps(tmp_path, kind="model"):
  """The steps of the checkpoints."""
  return sorted(int(path.stem.rpartition("-")[2])
                for path in (tmp_path / "model").glob(f"{kind}.ckpt-*.index"))


@pytest.mark.slow
def test_an_interrupted_run_sees_the_examples_of_an_uninterrupted_one(
    train, tmp_path):
  whole = train(shuffled(), 20, folder="whole")
  first = train(shuffled(), 20, stop_after=15)
  older, newest = steps(tmp_path)[-2:]
  assert 0 < older < newest < 15 and first == whole[:15]
  # The last two checkpoints have their places.
  assert len(steps(tmp_path)) > 2 and steps(tmp_path, "input") == [older, newest]
  shutil.copytree(tmp_path / "model", tmp_path / "torn")
  assert train(shuffled(), 20) == whole[newest:]
  for path in (tmp_path / "torn").glob(f"model.ckpt-{newest}.*"):
    path.unlink()
  (tmp_path / "torn" / "checkpoint").unlink()
  assert train(shuffled(), newest, folder="torn") == whole[older:newest]


@pytest.mark.slow
def test_without_a_seed_each_example_comes_once_in_an_epoch(train):
  seen = train(shuffled(None), 10) + train(shuffled(None), 30)
  assert sorted(np.ravel(seen)) == list(range(SIZE))


def test_a_checkpoint_without_a_place_goes_on_with_new_data(train, tmp_path, log):
  first = train(shuffled(), 8)
  for path in (tmp_path / "model").glob("input.ckpt-*"):
    path.unlink()
  assert train(shuffled(), 12) == first[:4]
  assert "input.ckpt-8 is missing, so training reads the data" in log.text


@pytest.mark.slow
def test_other_data_begin_at_their_beginning(train, log, tmp_path):
  train(shuffled(), 8)
  for i, other in enumerate([
      shuffled(batch=3),
      lambda params: shuffled()(params).map(lambda row: {"x": row["x"] + len("a")}),
      lambda params: shuffled()(params).map(lambda row: {
          "x": row["x"] + tf.cast(tf.strings.length("a text"), tf.int64)})]):
    shutil.copytree(tmp_path / "model", tmp_path / f"model{i}")
    log.clear()
    new = train(other, 9, folder=f"model{i}")
    assert new == train(other, 1, folder=f"fresh{i}")
    assert "is of other data, lengths or batches" in log.text


@pytest.mark.parametrize("binding", [
    "synthesizer_data.resume = False", "utils.run.skip_seen_data = True",
    "utils.run.checkpoint_input_pipeline = True"])
def test_a_binding_makes_a_restart_begin_the_data_again(train, tmp_path, binding):
  gin.parse_config(binding)
  first = train(shuffled(), 4)
  assert train(shuffled(), 6) == first[:2]
  assert not list((tmp_path / "model").glob("input.ckpt-*"))


def test_a_switch_that_is_no_boolean_is_refused():
  gin.parse_config("synthesizer_data.resume = 'no'")
  with pytest.raises(ValueError, match="`synthesizer_data.resume` is 'no' but"):
    data_position.synthesizer_data()


def test_data_whose_place_cannot_be_saved_train_and_say_so(train, tmp_path, log):
  def generated(params):
    del params
    return tf.data.Dataset.from_generator(
        lambda: ({"x": [i]} for i in range(SIZE)),
        output_types={"x": tf.int64}, output_shapes={"x": [1]})

  assert train(generated, 8) == [[i] for i in range(8)]
  assert log.text.count("The position in the data cannot be saved") == 1
  assert not list((tmp_path / "model").glob("input.ckpt-*"))
  assert train(generated, 9) == [[0]]


@seqio.map_over_dataset(num_seeds=1)
def cut_at_random(row, seed):
  """Keeps one to five ids, by a random number, as span corruption does."""
  size = tf.random.stateless_uniform([], seed, 1, 6, tf.int32)
  return {"targets": row["targets"][:size]}


@pytest.fixture
def mixture():
  """A mixture of two tasks that draw random numbers."""
  names = ["test_small", "test_large"]
  for first, name in zip((10, 500), names):
    def rows(split, shuffle_files, seed=None, first=first):
      ids = np.arange(first, first + 100).reshape(20, 5)
      return tf.data.Dataset.from_tensor_slices({"targets": ids.astype(np.int32)})

    seqio.TaskRegistry.add(
        name, source=seqio.FunctionDataSource(rows, ["train"]),
        preprocessors=[cut_at_random], metric_fns=[], output_features={
            "targets": seqio.Feature(seqio.PassThroughVocabulary(1000), False)})
  yield seqio.MixtureRegistry.add(
      "test_mixture", list(zip(names, (2, 1)))).name
  seqio.MixtureRegistry.remove("test_mixture")
  for name in names:
    seqio.TaskRegistry.remove(name)


@pytest.mark.slow
def test_mixtures_of_tasks_go_on_where_they_stood(train, mixture):
  def padded(params):
    del params
    rows = mesh_transformer.mesh_train_dataset_fn(
        mixture, {"targets": 10}, seed=3, shuffle=False,
        pack=False)
    return rows.map(lambda row: {"x": tf.cast(row["targets"], tf.int64)}).repeat(
        ).batch(2, drop_remainder=True)

  whole = train(padded, 14, folder="whole")
  assert train(padded, 5) + train(padded, 14) == whole


def write(path, first, size=40):
  """Writes pairs of numbers, or rows with a second column, in files of equal sizes."""
  rows = [f"{i}\t{i + 100}\tt{i}".split("\t") for i in range(first, first + size)]
  if path.suffix == ".csv":
    lines = ["inputs,other,targets", *map(",".join, rows)]
  else:
    lines = [f"{row[0]}\t{row[-1]}" for row in rows]
  path.write_text("\n".join(lines) + "\n")


def own_files(**chosen):
  """An input function: the numbers in files of our own source."""
  chosen = {f"synthesizer_mtf.tasks.pairs.{name}": value
            for name, value in chosen.items()}

  def input_fn(params):
    del params
    gin_files.bind(chosen)
    data = own_text.PairFiles().get_dataset("train", seed=1).repeat()
    return data.map(lambda row: {"x": tf.strings.to_number(row["inputs"], tf.int64)}
                    ).batch(2, drop_remainder=True)

  return input_fn


def touch(path, time):
  os.utime(path, (time, time))


@pytest.mark.parametrize("ending, change, said", [
    ("csv", lambda folder: write(folder / "a.csv", 500), "a.csv has changed"),
    ("tsv", lambda folder: write(folder / "a.tsv", 500), "a.tsv has changed"),
    ("tsv", lambda folder: write(folder / "b.tsv", 500), "b.tsv is new"),
    ("csv", lambda folder: {"keys": {"inputs": "other"}}, "'inputs': 'other'"),
    ("csv", lambda folder: {"classes": [f"t{i}" for i in range(300, 340)]},
     "names of the numbers"),
])
def test_changed_files_begin_at_their_beginning(
    ending, change, said, train, tmp_path, log):
  write(tmp_path / f"a.{ending}", 300)
  touch(tmp_path / f"a.{ending}", 1_000_000_000)
  bound = {"train": f"{tmp_path}/*.{ending}"}
  train(own_files(**bound), 4)
  more = change(tmp_path) or {}
  touch(tmp_path / f"a.{ending}", 1_000_000_000)  # Neither size nor time differs.
  log.clear()
  new = train(own_files(**bound, **more), 24)
  assert "is of other data, lengths or batches (" in log.text
  assert said in log.text.replace('"', "'")
  assert new == train(own_files(**bound, **more), 20, folder="fresh")


@pytest.mark.parametrize("ending, size", [("csv", 40), ("tsv", 6000)])
def test_data_go_on_where_their_folder_has_moved_to_and_times_differ(
    ending, size, train, tmp_path, monkeypatch):
  monkeypatch.setattr(text_source, "_SHUFFLE_BYTES", 50_000)  # Not the whole file.
  old, new = tmp_path / "old", tmp_path / "new"
  old.mkdir()
  write(old / f"a.{ending}", 300, size)
  whole = train(own_files(train=f"{old}/*"), 30, folder="whole")
  train(own_files(train=f"{old}/*"), 4)
  shutil.copytree(old, new)
  write(old / f"a.{ending}", 9000, size)
  touch(new / f"a.{ending}", 1_000_000_000)
  assert train(own_files(train=f"{new}/*"), 30) == whole[4:]


def sampled(rates=(1, 3), count=100, seed=1, share=0.5):
  """An input function: a mixture of two ranges, of which a filter drops a share."""
  def input_fn(params):
    del params
    data = tf.data.Dataset.sample_from_datasets(
        [tf.data.Dataset.range(first, first + count).repeat() for first in (0, 1000)],
        weights=list(map(float, rates)), seed=seed)
    data = data.filter(lambda x: tf.cast(x % 10, tf.float32) / 10. < share)
    return data.map(lambda x: {"x": x}).shuffle(9, seed=seed).batch(
        2, drop_remainder=True)

  return input_fn


@pytest.mark.parametrize("other", [
    sampled(rates=(3, 1)), sampled(count=99), sampled(share=0.25)])
def test_other_rates_and_numbers_begin_the_data_at_their_beginning(
    other, train, log):
  train(sampled(), 4)
  new = train(other, 8)
  assert "another task, split, length, batch size, rate or path" in log.text
  assert new == train(other, 4, folder="fresh")


def test_a_changed_seed_goes_on_in_the_former_order_and_the_log_says_so(train, log):
  whole = train(sampled(), 8, folder="whole")
  gin.parse_config("mesh_train_dataset_fn.seed = 1")
  train(sampled(), 4)
  assert train(sampled(), 6) == whole[4:6] and "Their order" not in log.text
  with gin.unlock_config():
    gin.parse_config("mesh_train_dataset_fn.seed = 2")
  assert train(sampled(seed=2), 8) == whole[6:]
  assert "Their order is that of `mesh_train_dataset_fn.seed` = 1" in log.text


def test_a_function_of_the_users_own_compares_the_files_that_it_names(
    train, tmp_path, log):
  path = tmp_path / "a.txt"

  def lines(params):
    del params
    data = tf.data.TextLineDataset(str(path)).repeat().shuffle(90, seed=1)
    return data.map(lambda line: {"x": tf.strings.to_number(line, tf.int64)}).batch(2)

  path.write_text("".join(f"{i}\n" for i in range(100, 120)))
  whole = train(lines, 6, folder="whole")
  assert train(lines, 4) + train(lines, 6) == whole
  path.write_text("".join(f"{i}\n" for i in range(200, 220)))
  assert np.min(train(lines, 8)) >= 200 and "a.txt has changed" in log.text


def test_what_a_python_function_reads_is_said_not_to_be_compared(train, log):
  def looked_up(params):
    del params
    data = tf.data.Dataset.range(100).map(lambda x: tf.numpy_function(
        lambda x: x, [x], tf.int64))
    return data.map(lambda x: {"x": tf.reshape(x, [1])})

  train(looked_up, 4)
  assert train(looked_up, 5) == [[4]]
  assert "They come from PyFunc, whose contents cannot be compared" in log.text


def test_a_position_of_an_older_version_begins_the_data_again(train, log, tmp_path):
  first = train(shuffled(), 4)
  path = str(tmp_path / "model/input.ckpt-4")
  with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.raw_ops.SaveV2(
        prefix=path, tensor_names=["digest"], shape_and_slices=[""],
        tensors=[tf.constant("0")]))
  assert train(shuffled(), 6) == first[:2]
  assert "no record of them, as of older versions" in log.text


def test_after_going_back_the_positions_are_those_of_the_training_that_goes_on(
    train, tmp_path):
  folder = tmp_path / "model"
  train(shuffled(), 20)
  saved = steps(tmp_path)
  checkpoint_files.name_in_state(folder, 8, *saved[:saved.index(8)], *saved[-3:])
  first = train(shuffled(), 24, stop_after=6)
  assert tf.train.latest_checkpoint(str(folder)).endswith("-12")
  assert steps(tmp_path)[-1] == 20 and steps(tmp_path, "input") == [12]
  assert train(shuffled(), 24, stop_after=1) == first[4:5]
