"""Runs the launcher in processes; most of them need not import TensorFlow.

They are forks of a process that has only imported TensorFlow. Inputs and results are
those of the installed command. The inputs are words, a folder and an environment. The
results are an exit status and two streams.
"""

from concurrent import futures
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile

from synthesizer_mtf import launcher

COMMAND = pathlib.Path(sys.executable).parent / "synthesizer_mesh_transformer"
LIMIT = 600  # Seconds. On an idle machine, a process takes 20.

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "synthesizer_mtf.launcher"])


class Process:
  """A running launcher, with the methods of `subprocess.Popen` that tests use."""

  def __init__(self, words, folder, environment, stdout, stderr):
    for path in (stdout, stderr):
      pathlib.Path(path).write_text("")
    self._process = _FORKS.Process(target=_launch, daemon=True, args=(
        [str(COMMAND), *words], str(folder), dict(environment), str(stdout),
        str(stderr)))
    self._process.start()

  @property
  def returncode(self):
    return self._process.exitcode

  def poll(self):
    return self._process.exitcode

  def wait(self, seconds=LIMIT):
    """Waits up to `seconds`; returns the exit status, or None if it still runs."""
    self._process.join(seconds)
    return self._process.exitcode

  def kill(self):
    self._process.kill()
    self._process.join()


def _launch(words, folder, environment, *streams):
  """Runs the launcher in a forked process."""
  for number, path in enumerate(streams, start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
  os.chdir(folder)
  os.environ.clear()
  os.environ.update(environment)
  sys.argv[:] = words
  launcher.console_entry_point()


def run(words, folder):
  """Runs the launcher to its end; returns its exit status and its output."""
  with tempfile.TemporaryDirectory() as streams:
    stdout, stderr = (pathlib.Path(streams, name) for name in ("out", "err"))
    process = Process(words, folder, os.environ, stdout, stderr)
    status = process.wait()
    process.kill()
    return subprocess.CompletedProcess(
        words, status, stdout.read_text(), stderr.read_text())


def start(function, *args):
  """Starts a function of a test file; returns its `multiprocessing` process."""
  process = _FORKS.Process(target=function, args=args)
  process.start()
  return process


def call(function, *args):
  """What a function of a test file returns in a process of its own."""
  with futures.ProcessPoolExecutor(1, _FORKS) as pool:
    return pool.submit(function, *args).result()


def run_installed(words, folder):
  """Does the same as `run`, with the installed command."""
  return _run_program([COMMAND, *words], folder)


def run_stock(words, folder):
  """Does the same as `run`, with T5's own command and this package as a module."""
  return _run_program([COMMAND.with_name("t5_mesh_transformer"),
                       "--module_import=synthesizer_mtf", *words], folder)


def _run_program(words, folder):
  return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT,
                        check=False, cwd=folder)
