"""Commands on prepared data sets, with every way into the network watched."""

import math
import os
import pathlib
import re
import socketserver
import subprocess
import sys
import threading

import pytest
import seqio
from support import prepared
from synthesizer_mtf.command import messages
from synthesizer_mtf.tasks import cache
from synthesizer_mtf.tasks import tfds_source

COMMAND = pathlib.Path(sys.executable).parent / "synthesizer_mesh_transformer"


class Watched:
  """Runs commands whose proxy for the network writes down who calls.

  TensorFlow's cloud storage and Python's libraries take the proxy from the
  environment. The proxy answers nobody, so that a caller also waits in vain.
  """

  def __init__(self):
    self.calls = []
    calls = self.calls

    class Handler(socketserver.BaseRequestHandler):

      def handle(self):
        calls.append(self.request.recv(200))

    self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    self.server.daemon_threads = True
    threading.Thread(target=self.server.serve_forever, daemon=True).start()

  def __call__(self, command, **environment):
    proxy = f"http://127.0.0.1:{self.server.server_address[1]}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    environment.update(dict.fromkeys(names, proxy))
    environment.update({name.upper(): proxy for name in names}, no_proxy="")
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True,
        timeout=200, check=False, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def watched():
  run = Watched()
  yield run
  run.server.shutdown()
  run.server.server_close()


def test_the_watch_sees_who_calls(watched):
  script = ("import urllib.request as r\n"
            "try: r.urlopen('http://example.invalid', timeout=3)\n"
            "except OSError: pass\n")
  watched([sys.executable, "-c", script])
  assert watched.calls
  watched.calls.clear()


def test_training_and_perplexities_of_a_prepared_data_set_make_no_call(
    watched, tfds_data_dir, sentencepiece_model, tmp_path):
  common = [
      COMMAND, f"--model_dir={tmp_path}", f"--t5_tfds_data_dir={tfds_data_dir}",
      "--gin_file=recipes/laptop/lm1b.gin", "--gin_file=attention/r+v.gin",
      "--gin_param=d_model = 8", "--gin_param=d_ff = 8",
      "--gin_param=num_layers = 1", "--gin_param=d_kv = 4",
      "--gin_param=utils.run.train_steps = 2", "--gin_param=dropout_rate = 0.0",
      "--gin_param=utils.run.batch_size = 2"]
  for more in ([], ["--gin_file=word_perplexity_eval.gin"]):
    done = watched([*common, *more], SYNTHESIZER_MTF_VOCAB=sentencepiece_model)
    assert done.returncode == 0, done.stderr[-3000:]
  assert not watched.calls
  found = {name: float(value) for name, value in re.findall(
      r"eval/(\w+) at step 2: (\S+)", done.stderr)}
  # Three sentences of five words, and their ends.
  assert found["words"] == 3 * (5 + 1)
  loss = found["tokens"] * math.log(found["perplexity_per_token"])
  assert loss == pytest.approx(
      found["words"] * math.log(found["perplexity_per_word"]), rel=1e-3)
  assert 100 < found["perplexity_per_token"] < 5000


def test_a_cached_task_yields_the_examples_of_the_uncached_one(
    watched, tasks_to_read, sentencepiece_model, tmp_path):
  done = watched([
      sys.executable, "-m", "synthesizer_mtf.tasks.cache",
      "--tasks=synth_super_glue_wsc", f"--tfds_data_dir={tasks_to_read}",
      f"--output_cache_dir={tmp_path}", "--min_shards=1"],
                 SYNTHESIZER_MTF_VOCAB=sentencepiece_model)
  assert done.returncode == 0, done.stderr[-3000:]
  assert not watched.calls
  seqio.add_global_cache_dirs([str(tmp_path)])
  task = seqio.TaskRegistry.get("synth_super_glue_wsc")
  def read(cached):
    return [
        {key: value.tolist() for key, value in example.items()
         if key in ("inputs", "targets")}
        for example in task.get_dataset(
            {"inputs": 64, "targets": 9}, "validation", use_cached=cached,
            shuffle=False).as_numpy_iterator()]
  assert read(True) == read(False) != []


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
