"""Runs commands in processes; most of them need not import TensorFlow.

They are forks of a process that has only imported this package, and `support.warm`.
Inputs and results are those of a program: words, a folder, an environment; an exit
status and two streams.
"""

from concurrent import futures
import functools
import multiprocessing
from multiprocessing import forkserver
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile

import gin
import pytest

import synthesizer_mesh_transformer

COMMAND = pathlib.Path(sys.executable).parent / "synthesizer_mesh_transformer"
LIMIT = 600  # Seconds. On an idle machine, a process takes 20.

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "support.warm"])


@functools.cache
def _start_server():
  """Starts the process to be forked, in the folder where it finds `support`."""
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(pathlib.Path(__file__).parents[1])
    forkserver.ensure_running()


class Process:
  """A running command, with the methods of `subprocess.Popen` that callers use.

  The command is the launcher, or Python with `-m` or `-c`.
  """

  context, daemon = _FORKS, True

  def __init__(self, words, stdout, stderr=subprocess.STDOUT, cwd=None, env=None,
               stdin=None, preexec_fn=None):
    """Starts the command; the streams are open files with a name."""
    del stdin  # A fork has none.
    _start_server()
    out = os.path.abspath(stdout.name)
    err = out if stderr == subprocess.STDOUT else os.path.abspath(stderr.name)
    self._process = self.context.Process(target=_launch, daemon=self.daemon, args=(
        [str(word) for word in words], str(cwd or os.getcwd()),
        dict(os.environ if env is None else env), (out, err), preexec_fn))
    self._process.start()
    self.pid, self.terminate = self._process.pid, self._process.terminate

  @property
  def returncode(self):
    return self._process.exitcode

  def poll(self):
    return self._process.exitcode

  def wait(self, timeout=LIMIT):
    self._process.join(timeout)
    if self.returncode is None:
      raise subprocess.TimeoutExpired("a fork", timeout)
    return self.returncode

  def kill(self):
    self._process.kill()
    self._process.join()


def _launch(words, folder, environment, streams, prepare):
  """Does in a forked process what the program of a command line does."""
  gin.clear_config()
  for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  if prepare:
    prepare()
  for number, path in enumerate(streams, start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
  sys.stdout.reconfigure(line_buffering=True)
  os.chdir(folder)
  os.environ.clear()
  os.environ.update(environment)
  program, *rest = words
  if os.path.basename(program) == COMMAND.name:
    sys.argv[:] = words
    synthesizer_mesh_transformer.main()
  elif rest[0] == "-m":
    sys.argv[:] = rest[1:]
    runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
  else:
    assert (program, rest[0]) == (sys.executable, "-c"), words
    sys.argv[:] = ["-c", *rest[2:]]
    exec(rest[1], {"__name__": "__main__"})


def run_program(words, folder, start=Process, **environment):
  """Runs a command to its end; returns its exit status and its output.

  Args:
    words: the launcher's path or Python's, and further words.
    folder: the working directory.
    start: `subprocess.Popen` for a real program instead of a fork.
    **environment: variables besides those of this process.
  """
  with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
    process = start([str(word) for word in words], stdout=out, stderr=err, cwd=folder,
                    env={**os.environ, **environment})
    try:
      status = process.wait(LIMIT)
    finally:
      process.kill()
    return subprocess.CompletedProcess(words, status, *(
        pathlib.Path(file.name).read_text() for file in (out, err)))


def start(function, *args):
  """Starts a function of a test file; returns its `multiprocessing` process."""
  _start_server()
  process = _FORKS.Process(target=function, args=args)
  process.start()
  return process


def call(function, *args):
  """What a function of a test file returns in a process of its own."""
  _start_server()
  with futures.ProcessPoolExecutor(1, _FORKS) as pool:
    return pool.submit(function, *args).result()


def run(words, folder):
  """Runs the launcher to its end."""
  return run_program([COMMAND, *words], folder)
