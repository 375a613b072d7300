"""The fixtures that several tests share; conftest.py imports them where tests run."""

import contextlib
import ctypes
import gc
import logging as python_logging
import os
import pydoc_data.topics
import shutil
import signal
import tempfile

# Comes first, because it makes mesh_tensorflow importable.
import synthesizer_mtf  # noqa: F401, I001  # isort: skip

from absl import flags
from absl import logging
import gin
import psutil
import pytest
import seqio
from support import light_graphs
from support import prepared
from synthesizer_mtf.tools.base import vocabularies
from synthesizer_mtf.trainer.data import seed
import tensorflow.compat.v1 as tf

# TensorFlow cannot turn eager execution on again, so it stays on, also in commands that
# fixtures run. It has no effect inside of a graph.
tf.disable_v2_behavior = tf.disable_resource_variables


def pytest_configure():
  light_graphs.few_operations()
  # nohup or a server may have turned SIGINT off for this process and its children.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # nohup's wish, but not ignored.
  # If a process of a test ends first, this process becomes its children's parent.
  ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def pytest_collection_finish():
  """Makes garbage collection rare, because the many graphs of the tests slow it."""
  gc.freeze()
  gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory):
  """A folder for the temporary files of tests, of forks, and of programs.

  Forks, and workers of xdist, end without removing theirs.
  """
  folder = tmp_path_factory.mktemp("t")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TMPDIR", str(folder))
    patch.setattr(tempfile, "tempdir", str(folder))
    yield
  for path in folder.glob("[!p]*"):  # multiprocessing removes its pymp-* at exit.
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module", autouse=True)
def nothing_runs_on():
  """Waits for the processes that the tests of a file started; kills those left."""
  before = _running()
  yield
  _, left = psutil.wait_procs(_running() - before, timeout=60)
  for process in left:
    process.kill()
  assert not left


def _running():
  """The processes that this one has started, except those that only fork others."""
  us, running = psutil.Process(), set()
  for process in us.children(recursive=True):
    try:
      forks = process.ppid() == us.pid and "multiprocessing" in str(process.cmdline())
      if process.status() != psutil.STATUS_ZOMBIE and not forks:
        running.add(process)
    except psutil.NoSuchProcess:
      pass
  return running


@pytest.fixture(autouse=True)
def clean_gin():
  """Clears gin's configuration before and after each test."""
  gin.clear_config()
  yield
  gin.clear_config()


@pytest.fixture(autouse=True)
def same_dropout():
  """Derives the seeds of dropout from names; Mesh TensorFlow draws new seeds."""
  with seed.random_by_name():
    yield


@pytest.fixture(autouse=True)
def same_tensorflow():
  """Undoes the settings of TensorFlow that commands change for the whole process."""
  with _same_verbosity():
    yield
  tf.enable_resource_variables()
  tf.enable_control_flow_v2()


@pytest.fixture(scope="module", autouse=True)
def same_verbosity():
  """Undoes what the fixtures of a file have set."""
  with _same_verbosity():
    yield


@contextlib.contextmanager
def _same_verbosity():
  before = tf.logging.get_verbosity(), logging.get_verbosity()
  yield
  tf.logging.set_verbosity(before[0])
  logging.set_verbosity(before[1])


@pytest.fixture
def parsed_flags():
  """Marks absl's flags as parsed, as `app.run` does, for commands in this process."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


@pytest.fixture
def log(caplog):
  """What absl's logger says, from INFO on."""
  python_logging.getLogger("absl").propagate = True
  with caplog.at_level("INFO", logger="absl"):
    yield caplog


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory):
  """The path of a SentencePiece model of 500 pieces, made from Python's manual."""
  lines = "\n".join(pydoc_data.topics.topics.values()).splitlines()
  path = tmp_path_factory.mktemp("vocabulary") / "spm.model"
  path.write_bytes(vocabularies.train(
      lines[:2000], 500, model_type="bpe", character_coverage=1.))
  return str(path)


@pytest.fixture
def clean_tasks(monkeypatch):
  """Removes the environment variables of our tasks."""
  for name in [n for n in os.environ if n.startswith("SYNTHESIZER_MTF_")]:
    monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tfds_data_dir(tmp_path_factory):
  """A TFDS directory with a few rows of every data set that the tasks read."""
  folder = str(tmp_path_factory.mktemp("tfds"))
  prepared.write_all(folder)
  seqio.set_tfds_data_dir_override(folder)
  yield folder
  seqio.set_tfds_data_dir_override(None)


@pytest.fixture
def tasks_to_read(tfds_data_dir, sentencepiece_model, monkeypatch):
  """Lets a test read tasks; returns the TFDS directory."""
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", sentencepiece_model)
  return tfds_data_dir
