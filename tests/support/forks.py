"""Runs `reproduce`, and the commands that it starts, without new interpreters.

All are forks of a process that has only imported TensorFlow. `reproduce` builds graphs
before it starts commands, but has no session then, so it can be forked, too.
"""

import os
import signal
import subprocess
import sys
import time
import types

import gin
from support import processes
from synthesizer_mtf import launcher
from synthesizer_mtf.tools.runs import process


class Command:
  """A running launcher, with what `runs.process` uses of `subprocess.Popen`."""

  def __init__(self, command, stdout, stderr, stdin, env, preexec_fn):
    del stderr, stdin
    self.returncode = None
    sys.stdout.flush()
    self.pid = os.fork()
    if not self.pid:
      try:
        preexec_fn()
        _become(command, env, stdout.fileno())
        launcher.console_entry_point()
      except SystemExit as error:
        if isinstance(error.code, str):  # A message, as for an interpreter.
          print(error.code, file=sys.stderr, flush=True)
        else:
          os._exit(error.code or 0)
      finally:
        os._exit(1)

  def poll(self):
    if self.returncode is None:
      pid, status = os.waitpid(self.pid, os.WNOHANG)
      self.returncode = os.waitstatus_to_exitcode(status) if pid else None
    return self.returncode

  def wait(self, seconds):
    until = time.time() + seconds
    while self.poll() is None:
      if time.time() > until:
        raise subprocess.TimeoutExpired("a command", seconds)
      time.sleep(0.05)

  def terminate(self):
    if self.poll() is None:
      os.kill(self.pid, signal.SIGTERM)

  def kill(self):
    if self.poll() is None:
      os.kill(self.pid, signal.SIGKILL)


def _become(words, environment, output):
  """Gives this process the words, the environment and the output of another one."""
  for stream in (1, 2):
    os.dup2(output, stream)
  sys.stdout.reconfigure(write_through=True)
  os.environ.clear()
  os.environ.update(environment)
  sys.argv[:] = words
  for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  gin.clear_config()


def _reproduce(words, environment, output):
  """Runs `reproduce` in a forked process."""
  from synthesizer_mtf.tools import reproduce  # Takes seconds, in this process alone.
  _become(["reproduce", *words], environment, os.open(output, os.O_WRONLY))
  process.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": Command})
  sys.exit(reproduce.main(words))


def start(words, output, **environment):
  """Starts `reproduce`; returns its `multiprocessing.Process`.

  Args:
    words: its flags.
    output: the file of its output.
    **environment: more variables.
  """
  output.write_text("")
  return processes.start(
      _reproduce, words, {**os.environ, **environment}, str(output))
