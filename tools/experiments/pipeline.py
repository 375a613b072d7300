"""Stages: commands that run one after another, each with a check whether it is done.

The results of a stage show whether it is done: checkpoints, event files and
predictions. So a run resumes where it was stopped.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import sys
import time
from typing import Any

from synthesizer_mtf.tools.experiments import process
from synthesizer_mtf.tools.experiments import shares


@dataclasses.dataclass(frozen=True)
class Stage:
  """One command.

  Attributes:
    title: a string, e.g. "pre-train R+V".
    log: the file for its output.
    is_done: a function without arguments.
    steps: a range, or None if the command does not count steps.
  """
  title: str
  command: list[str]
  log: pathlib.Path
  is_done: Callable[[], bool]
  steps: range | None = None

  def run(self) -> None:
    """Runs the command, and ends it if interrupted.

    Raises:
      process.CommandError: the command fails, or has no result.
    """
    print(f"\n{shown(self.command)}", flush=True)
    running = self.start(shares.Share())
    try:
      while running.goes_on():
        time.sleep(process.POLL_SECONDS)
    finally:
      running.end()
    self.check(running)

  def start(self, share: shares.Share, draw: bool = True) -> process.Running:
    """Starts the command with its share of the machine, and does not wait."""
    return process.Running(
        self.command, self.log, self.title, self.steps, share, draw)

  def check(self, running: process.Running) -> None:
    """Raises a `process.CommandError` if the ended command failed or has no result."""
    running.check()
    if not self.is_done():
      raise process.CommandError(
          f"{self.title} left no result. The last lines of {self.log}:\n\n"
          f"{process.tail(self.log)}")


def launcher() -> list[str]:
  """Returns the command that a user types, from the folder of this Python.

  It logs everything, because `results.losses` reads the loss of each step from the log.
  """
  name = "synthesizer_mesh_transformer"
  script = shutil.which(os.path.join(os.path.dirname(sys.executable), name))
  if script is None:
    return [sys.executable, "-m", "synthesizer_mtf.launcher", "--verbosity=1"]
  shorter = os.path.relpath(script)
  return [script if shorter.startswith(os.pardir) else shorter, "--verbosity=1"]


def flags(gin_files: Iterable[str | pathlib.Path],
          params: Mapping[str, Any]) -> list[str]:
  """Returns flags of the launcher.

  Args:
    params: a dict from gin's parameters to values that JSON can write, or to
      references, strings that begin with "@" or "%".
  """
  return [*(f"--gin_file={path}" for path in gin_files),
          *(f"--gin_param={name} = {_gin_value(value)}"
            for name, value in params.items())]


def _gin_value(value):
  if isinstance(value, str) and value[:1] in ("@", "%"):
    return value
  # gin reads Python, which does not know JSON's true, false and null.
  odd = isinstance(value, (bool, type(None)))
  return repr(value) if odd else json.dumps(value)


def shown(command: list[str]) -> str:
  """Returns a command as a user would type it, on lines of about 80 columns."""
  lines = ["$"]
  for word in map(shlex.quote, command):
    if len(lines[-1]) + len(word) > 77 and lines[-1].strip("$ "):
      lines.append("   ")
    lines[-1] += " " + word
  return " \\\n".join(lines)


def print_all(title: str, number: int | str,
              commands: Iterable[tuple[str, list[str]]]) -> list[dict[str, Any]]:
  """Prints commands; returns a dict for each.

  Args:
    title: the title of the table.
    number: the name of the table in --table.
    commands: (description, command) of each.
  """
  lines = []
  for what, command in commands:
    # Users type them on another machine, so the folder of this Python is left out.
    typed = shown([os.path.basename(command[0]), *command[1:]])
    print(f"# {title}, {what}\n{typed.removeprefix('$ ')}\n")
    lines.append({"table": number, "title": what, "command": command})
  return lines
