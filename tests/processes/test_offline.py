"""Commands on prepared data sets do not use the network."""

import math
import re
import socketserver
import subprocess
import sys
import threading

import pytest
import seqio
from support import processes


class Watched:
  """Runs commands behind a network proxy that records every request.

  TensorFlow's cloud storage and Python's libraries take the proxy from the
  environment. The proxy never answers, so a request also hangs.
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

  def __call__(self, command, folder, start=processes.Process, **environment):
    proxy = f"http://127.0.0.1:{self.server.server_address[1]}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    environment.update(dict.fromkeys(names, proxy))
    environment.update({name.upper(): proxy for name in names}, no_proxy="")
    return processes.run_program(command, folder, start, **environment)


@pytest.fixture(scope="module")
def watched():
  run = Watched()
  yield run
  run.server.shutdown()
  run.server.server_close()


def test_the_watch_sees_who_calls(watched, tmp_path):
  script = ("import urllib.request as r\n"
            "try: r.urlopen('http://example.invalid', timeout=3)\n"
            "except OSError: pass\n")
  watched([sys.executable, "-c", script], tmp_path)
  assert watched.calls
  watched.calls.clear()


def test_training_and_perplexities_of_a_prepared_data_set_make_no_call(
    watched, tfds_data_dir, sentencepiece_model, tmp_path):
  """The training is the installed script itself, with all its imports."""
  common = [
      processes.COMMAND, f"--model_dir={tmp_path}",
      f"--t5_tfds_data_dir={tfds_data_dir}", "--gin_file=recipes/laptop/lm1b.gin",
      "--gin_file=attention/r+v.gin",
      "--gin_param=d_model = 8", "--gin_param=d_ff = 8",
      "--gin_param=num_layers = 1", "--gin_param=d_kv = 4",
      "--gin_param=utils.run.train_steps = 2", "--gin_param=dropout_rate = 0.0",
      "--gin_param=utils.run.batch_size = 2"]
  for more, start in (([], subprocess.Popen), (
      ["--gin_file=word_perplexity_eval.gin"], processes.Process)):
    done = watched([*common, *more], tmp_path, start,
                   SYNTHESIZER_MTF_VOCAB=sentencepiece_model)
    assert done.returncode == 0, done.stderr[-3000:]
  assert not watched.calls
  measures = {name: float(value) for name, value in re.findall(
      r"eval/(\w+) at step 2: (\S+)", done.stderr)}
  # Three sentences, each of five words and an end.
  assert measures["words"] == 3 * (5 + 1)
  loss = measures["tokens"] * math.log(measures["perplexity_per_token"])
  assert loss == pytest.approx(
      measures["words"] * math.log(measures["perplexity_per_word"]), rel=1e-3)
  assert 100 < measures["perplexity_per_token"] < 5000


def test_a_cached_task_yields_the_examples_of_the_uncached_one(
    watched, tasks_to_read, sentencepiece_model, tmp_path):
  done = watched([
      sys.executable, "-m", "synthesizer_mtf.tasks.cache",
      "--tasks=synth_super_glue_wsc", f"--tfds_data_dir={tasks_to_read}",
      f"--output_cache_dir={tmp_path}", "--min_shards=1"],
                 tmp_path, subprocess.Popen, SYNTHESIZER_MTF_VOCAB=sentencepiece_model)
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
  assert "SentencePiece" in (
      tmp_path / "synth_super_glue_wsc" / "made_with.json").read_text()
