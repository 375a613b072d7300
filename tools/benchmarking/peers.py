"""T5 in PyTorch and JAX, as rows of the benchmark: processes of another Python.

They take turns with the rows of this process, a step for each line that they are
sent, and wait without work in between.
"""

import dataclasses
import json
import pathlib
import subprocess
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import model

_SCRIPT = pathlib.Path(__file__).with_name("peer_process.py")
FAMILY = "peer"


def rows(python: str) -> list[attentions.Row]:
  """The rows for both, run by this Python.

  Args:
    python: the path of an interpreter that can import torch, jax, flax, optax and
      transformers 4.

  Returns:
    a list of `attentions.Row`.

  Raises:
    ValueError: there is no such program.
  """
  if not pathlib.Path(python).is_file():
    raise checks.Error(
        f"there is no file {python!r}, which --peers names; give the python of an "
        "environment with torch, jax, flax, optax and transformers 4, as in "
        "--peers=peers/bin/python.")
  return [attentions.Row(name, FAMILY, lambda stack, length: [], python=python)
          for name in ("PyTorch", "JAX")]


def obstacle(config: model.Configuration, measure: str) -> str | None:
  """Why a peer cannot be measured so, or None."""
  if measure != "train":
    return "of PyTorch and JAX training steps are measured only"
  if config.packed:
    return "Hugging Face's T5 takes no packed rows"
  return None


class Peer:
  """A model of the same sizes that another Python trains.

  Attributes:
    parameters: how many numbers are trained.
    versions: those of the packages that it uses.
  """

  def __init__(self, row: attentions.Row, config: model.Configuration) -> None:
    self._process = subprocess.Popen(
        [row.python, str(_SCRIPT), row.name.split()[0], row.precision,
         json.dumps(dataclasses.asdict(config))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    started = self._answer()
    self.parameters, self.versions = started["parameters"], started["versions"]

  def run(self) -> float:
    """Trains one step.

    Returns:
      the loss.

    Raises:
      RuntimeError: the process has ended; why is on standard error.
    """
    try:
      self._process.stdin.write("\n")
      self._process.stdin.flush()
    except BrokenPipeError:
      pass  # Its answer, which does not come, tells.
    return self._answer()["loss"]

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()
    self._process.stdout.close()

  def _answer(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(
          f"{self._process.args[0]} ended with status {self._process.wait()}, for "
          "the reason above")
    return json.loads(line)
