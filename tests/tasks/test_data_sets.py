"""Data sets that are cached, or missing."""

import sys

import pytest
import seqio
from support import prepared
from synthesizer_mtf.command import messages
from synthesizer_mtf.tasks import cache
from synthesizer_mtf.tasks import tfds_source


def test_caching_without_apache_beam_says_how_to_get_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  monkeypatch.delitem(sys.modules, "seqio.scripts.cache_tasks_main",
                      raising=False)
  with pytest.raises(SystemExit, match=r"synthesizer-mtf\[cache\]"):
    cache.main()


def test_a_task_that_is_not_cached_is_the_users_mistake(tasks_to_read):
  task = seqio.TaskRegistry.get("synth_ag_news")
  with pytest.raises(AssertionError) as error:
    task.get_dataset({"inputs": 8, "targets": 8}, "train", use_cached=True)
  assert messages.is_mistake(error.value)


def test_a_missing_data_set_is_named_with_its_folder_and_remedy(
    tmp_path, monkeypatch):
  source = tfds_source.PreparedDataSource("glue/cola:2.0.0")
  source.tfds_dataset.override_data_dir(str(tmp_path))

  def refuse(*_, **__):
    raise ConnectionError("no network")

  with prepared.without_cloud_storage():
    builder = source.tfds_dataset.builder
  monkeypatch.setattr(builder, "download_and_prepare", refuse)
  for use in (lambda: source.splits, lambda: source.get_dataset("train"),
              lambda: source.num_input_examples("train")):
    with pytest.raises(ValueError) as error:
      use()
    for part in ("'glue/cola:2.0.0'", str(tmp_path), "no network",
                 "--t5_tfds_data_dir", "tfds build glue/cola:2.0.0"):
      assert part in str(error.value)


def test_a_missing_data_set_is_prepared_where_that_works(tmp_path):
  source = tfds_source.PreparedDataSource("ag_news_subset:1.0.0")
  source.tfds_dataset.override_data_dir(str(tmp_path))
  row = prepared.BY_TASK["synth_ag_news"].row
  with prepared.without_cloud_storage():
    builder = source.tfds_dataset.builder
    builder._split_generators = (
        lambda _: {"train": iter([(0, row), (1, row)])})
    assert source.num_input_examples("train") == 2
  assert len(list(source.get_dataset("train"))) == 2
