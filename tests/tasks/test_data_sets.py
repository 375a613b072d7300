"""Data sets that are cached, or missing."""

import socket
import sys
import threading
import types
import urllib.request

import pytest
import seqio
from support import prepared
from support.task_files import bind
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import cache
from synthesizer_mtf.tasks import tfds_source


def test_caching_without_apache_beam_says_how_to_get_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  monkeypatch.delitem(sys.modules, "seqio.scripts.cache_tasks_main",
                      raising=False)
  with pytest.raises(SystemExit, match=r"synthesizer-mtf\[cache\]"):
    cache.main()


def test_a_missing_data_set_is_named_with_its_folder_and_remedy(
    tmp_path, monkeypatch):
  source = tfds_source.PreparedDataSource("glue/cola:2.0.0")
  source.tfds_dataset.override_data_dir(str(tmp_path))

  def refuse(*_, **__):
    raise socket.gaierror(-2, "Name not known")

  with prepared.without_cloud_storage():
    builder = source.tfds_dataset.builder
  # TFDS itself tries for minutes.
  monkeypatch.setattr(builder, "download_and_prepare", lambda: pytest.fail("waits"))
  monkeypatch.setattr(socket, "create_connection", refuse)
  monkeypatch.setattr(urllib.request, "getproxies", dict)
  for use in (lambda: source.splits, lambda: source.get_dataset("train"),
              lambda: source.num_input_examples("train")):
    with pytest.raises(ValueError) as error:
      use()
    for part in ("'glue/cola:2.0.0'", str(tmp_path), "no network to ",
                 "--t5_tfds_data_dir", "tfds build glue/cola:2.0.0"):
      assert part in str(error.value)


def test_the_first_host_that_answers_is_enough_and_a_silent_name_server_is_not_awaited(
    monkeypatch):
  monkeypatch.setattr(urllib.request, "getproxies", dict)
  monkeypatch.setattr(checks, "_SECONDS", .1)
  silence = threading.Event()

  def connect(address, _):
    if address == ("here", 80):
      return types.SimpleNamespace(close=list)
    return silence.wait(5) and socket.gaierror()

  monkeypatch.setattr(socket, "create_connection", connect)
  assert not checks.no_network([("silent", 443), ("here", 80)])
  assert checks.no_network(
      [("silent", 443), ("still", 21)]) == "no network to silent, still: no answer"
  assert not checks.no_network([])
  silence.set()


def test_what_was_fetched_before_needs_no_network(tmp_path, monkeypatch):
  source = tfds_source.PreparedDataSource("glue/cola:2.0.0")
  source.tfds_dataset.override_data_dir(str(tmp_path))
  with prepared.without_cloud_storage():
    builder = source.tfds_dataset.builder
  monkeypatch.setattr(checks, "no_network", lambda _: pytest.fail("asks"))
  (tmp_path / "downloads").mkdir()
  (tmp_path / "downloads" / "some.zip.INFO").touch()
  prepared_once = []
  monkeypatch.setattr(
      builder, "download_and_prepare", lambda: prepared_once.append(1) or 1 / 0)
  with pytest.raises(ValueError, match="ZeroDivisionError"):
    source.num_input_examples("train")
  assert prepared_once


def test_names_of_buckets_are_not_taken_for_hosts(monkeypatch):
  monkeypatch.setattr(checks, "no_network", lambda _: pytest.fail("asks"))
  tfds_source._check_hosts(types.SimpleNamespace(url_infos=["gs://bucket/a.zip"]))


def test_a_missing_data_set_is_prepared_if_possible(tmp_path, monkeypatch):
  monkeypatch.setattr(checks, "no_network", lambda _: "")
  source = tfds_source.PreparedDataSource("ag_news_subset:1.0.0")
  source.tfds_dataset.override_data_dir(str(tmp_path))
  row = prepared.BY_TASK["synth_ag_news"].row
  with prepared.without_cloud_storage():
    builder = source.tfds_dataset.builder
    builder._split_generators = (
        lambda _: {"train": iter([(0, row), (1, row)])})
    assert source.num_input_examples("train") == 2
  assert len(list(source.get_dataset("train"))) == 2


def test_a_missing_split_is_named_with_the_existing_splits(tasks_to_read):
  for name, split, splits in [
      ("synth_lm1b", "validation", "'train', 'test'"),
      ("synth_glue_mnli_matched", "train", "'validation', 'test'")]:
    with pytest.raises(checks.Error, match=(
        f"'{name}' has no split '{split}'; bind `utils.run.dataset_split` to one of "
        f"those that it has, which are {splits}")):
      seqio.TaskRegistry.get(name).get_dataset({"inputs": 8, "targets": 8}, split)


def test_gin_names_other_data_sets_and_versions():
  news = {"c4/en:3.1.0": "c4/realnewslike:3.1.0"}
  for names, default, expected in [
      (news, "c4/en:3.1.0", "c4/realnewslike:3.1.0"),
      (news, "lm1b:1.1.0", "lm1b:1.1.0"),
      ({"glue/*:2.0.0": "glue/*:1.0.0"}, "glue/mnli:2.0.0", "glue/mnli:1.0.0"),
      (None, "glue/mnli:2.0.0", "glue/mnli:2.0.0")]:
    source = tfds_source.PreparedDataSource(default)
    bind("tfds.names", names)
    assert source.tfds_dataset.name == expected
    assert source.made_with() == {"data set": expected}
    bind("tfds.names", None)
    assert source.tfds_dataset.name == default


def test_another_data_set_is_read(tasks_to_read):
  bind("tfds.names", {"lm1b:1.1.0": "c4/en:3.1.0"})
  task = seqio.TaskRegistry.get("synth_lm1b")
  assert set(task.splits) == {"train", "validation"}
  texts = [example["targets_pretokenized"].decode() for example in task.get_dataset(
      {"targets": 64}, "validation", shuffle=False).as_numpy_iterator()]
  assert texts == [prepared.DOCUMENT["text"]] * 3
  assert len(task.source.list_shards("validation")) == 1


def test_wrong_names_of_data_sets_are_named():
  for names, message in [
      ({"c4/en": "c4/realnewslike:3.1.0"}, "replaces 'c4/en', but no task reads"),
      ({"c4/en:3.1.0": 3}, "is .* but must be a dict"),
      ("c4/realnewslike:3.1.0", "is 'c4/realnewslike:3.1.0' but must be a dict"),
      ({"c4/en:3.1.0": "c4/realnewslike"}, "must contain a version number")]:
    bind("tfds.names", names)
    with pytest.raises(ValueError, match=message):
      _ = seqio.TaskRegistry.get("synth_c4_span_corruption").source.tfds_dataset
