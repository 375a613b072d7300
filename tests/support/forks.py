"""Runs `reproduce`, and the commands that it starts, without new interpreters.

All are forks of a process that has only imported TensorFlow. `reproduce` builds graphs
before it starts commands, but has no session then, so it can be forked, too.
"""

import multiprocessing
import os
import subprocess
import sys
import types

from support import processes
from synthesizer_mtf.tools.experiments import process


class Command(processes.Process):
  """A running launcher, a child of `reproduce`."""

  context = multiprocessing.get_context("fork")


class Reproduce(processes.Process):
  """A running `reproduce`, which has children of its own."""

  daemon = False


def _fork_commands():
  process.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": Command})


def start(words, output, **environment):
  """Starts `reproduce`; returns its process.

  Args:
    words: its flags.
    output: the file of its output.
    **environment: more variables.
  """
  with open(output, "w") as out:
    return Reproduce([sys.executable, "-m", "synthesizer_mtf.tools.reproduce", *words],
                     out, env={**os.environ, **environment}, preexec_fn=_fork_commands)
