"""T5 in PyTorch, JAX and CTranslate2, as rows of the benchmark.

Each baseline is a process of another Python. Baselines take turns with the rows of this
process. A baseline makes one step for each line that it receives, and then waits idle.
"""

from collections.abc import Iterable
import dataclasses
import json
import pathlib
import subprocess
from typing import Any
from typing import NamedTuple

from studies.peers import exported
from synthesizer_mtf import checks
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import model

_SCRIPT = pathlib.Path(__file__).with_name("baseline_process.py")
FAMILY = "baseline"

# The measures that each library supports.
_MEASURES = {"PyTorch": ("train", "decode"), "JAX": ("train",),
             "CTranslate2": ("decode",)}


def rows(python: str, measures: Iterable[str]) -> list[attentions.Row]:
  """Returns the rows of all baselines, which this Python runs.

  Args:
    python: the path of an interpreter that can import transformers 4, torch, jax, flax,
      optax and ctranslate2.
    measures: the wanted measures. A library that supports none of them has no row.

  Returns:
    a list of `attentions.Row`.

  Raises:
    ValueError: there is no such program.
  """
  if not pathlib.Path(python).is_file():
    raise checks.Error(
        f"there is no file {python!r}, which --baselines names; give the python of an "
        "environment with transformers 4, torch, jax, flax, optax and ctranslate2, as "
        "in --baselines=baselines/bin/python.")
  made = [attentions.Row(name, FAMILY, elsewhere=Library(python))
          for name, known in _MEASURES.items() if {*known}.intersection(measures)]
  return made + [row._replace(name=f"{row.name} in int8", precision="int8")
                 for row in made if row.name == "CTranslate2"]


class Library(NamedTuple):
  """Makes the baselines that a Python runs; `attentions.Row.elsewhere`."""
  python: str

  def __call__(self, row: attentions.Row, config: model.Configuration,
               measure: str) -> "Baseline":
    return Baseline(self.python, row, config, measure)

  def obstacle(self, row: attentions.Row, config: model.Configuration,
               measure: str) -> str | None:
    """Returns why this measure of a baseline is not possible, or None."""
    if measure not in _MEASURES[_program(row)]:
      return f"{_program(row)} is measured only by {_MEASURES[_program(row)][0]}"
    if config.packed and measure == "train":
      return "Hugging Face's T5 takes no packed rows"
    return None


def _program(row):
  return row.name.split()[0]


class Baseline:
  """A model of the same sizes that another Python trains, or decodes with.

  Attributes:
    parameters: the number of trainable parameters.
    versions: the versions of the packages that the baseline uses.
  """

  def __init__(self, python: str, row: attentions.Row, config: model.Configuration,
               measure: str) -> None:
    """Starts the process.

    Args:
      python: its interpreter.
      row: one of `rows`.
      config: the sizes.
      measure: "train" or "decode".

    Raises:
      measuring.NotPossibleError: the Python lacks a package, or the package refuses.
      RuntimeError: the process has ended; standard error has the reason.
    """
    self._python = python
    sizes = dataclasses.asdict(config)
    if measure == "decode":
      sizes["folder"] = exported.folder(config)
    self._process = subprocess.Popen(
        [self._python, str(_SCRIPT), _program(row), measure, row.precision,
         json.dumps(sizes)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert self._process.stdin and self._process.stdout  # They are pipes.
    self._requests, self._answers = self._process.stdin, self._process.stdout
    started = self._answer()
    if "obstacle" in started:
      self.close()
      raise measuring.NotPossibleError(f"{self._python} {started['obstacle']}")
    self.sizes = {"parameters": started["parameters"]}
    self.versions = started["versions"]

  def run(self) -> Any:
    """Trains one step, or decodes one batch.

    Returns:
      the loss, or the ids of each example, a list of lists.

    Raises:
      RuntimeError: the process has ended; standard error has the reason.
    """
    try:
      self._requests.write("\n")
      self._requests.flush()
    except BrokenPipeError:
      pass  # `_answer` raises the error, because no answer comes.
    return self._answer()["result"]

  def close(self) -> None:
    self._requests.close()
    self._process.wait()
    self._answers.close()

  def _answer(self) -> dict[str, Any]:
    line = self._answers.readline()
    if not line:
      raise checks.Error(
          f"{self._python} ended with status {self._process.wait()}, for "
          "the reason above; repair its environment.")
    return json.loads(line)
