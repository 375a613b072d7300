"""Measures the speed and size of a table's rows at laptop scale.

All rows take turns in one process, with the model of `benchmark`. So other work on the
machine slows all rows alike.
"""

from collections.abc import Iterable
from typing import Any

from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import plan

# The size of T5's vocabulary, which Mesh TensorFlow rounds up to a multiple of 128.
_VOCABULARY = 32128


def measure(table: tables.Table, rows: Iterable[tables.Row],
            settings: plan.Settings, lengths: tuple[int, int], batch: int,
            rounds: int, progress: measuring.Progress,
            vocabulary: int = _VOCABULARY) -> dict[str, dict[str, Any]]:
  """Times training steps of all rows, in turns, on random tokens.

  Args:
    table: a `tables.Table`.
    rows: some of its rows.
    settings: a `plan.Settings`.
    lengths: (tokens of the inputs, tokens of the targets).
    batch: the number of examples in a step.
    rounds: the number of rounds that count, after two rounds of warm-up.
    progress: a function (number of runs done, name of the current run).
    vocabulary: the size of the vocabulary.

  Returns:
    a dict from names of rows to dicts with "status" and "reason". If the status is
    "ok", they also have "steps_per_second", "ratio" and "ratio_quartiles" to the first
    row, "parameters", and "tflops", which counts only einsums.
  """
  config = model.Configuration(
      inputs=lengths[0], targets=lengths[1], batch=batch,
      vocabulary=vocabulary, dropout_rate=0.0, relative_bias=True,
      targets_vocabulary=128 if lengths[1] == 1 else None)
  timed = measuring.measure_time(
      [_row(table, row, settings) for row in rows], config, "train", 2, rounds,
      progress)
  first = timed[0].get("seconds")
  return {result["row"]: _summary(result, first) for result in timed}


def _row(table, row, settings):
  """Returns a row of the benchmark with the gin bindings of a row at laptop scale."""
  task = table.trained(settings.task)[0]
  of_row = plan.Commands(table, row, task, "laptop", settings)
  bindings = [f"include '{path}'" for path in of_row.files(task)]
  bindings += [flag.split("=", 1)[1]
               for flag in pipeline.flags([], of_row.params(task))]
  bindings += settings.gin_params
  return attentions.Row(
      row.name, "ours", lambda stack, length: bindings * (stack == "encoder"))


def _summary(result, first):
  summary = {key: result.get(key) for key in (
      "status", "reason", "steps_per_second", "parameters")}
  if result["status"] == "ok":
    summary["tflops"] = result["einsum_tflops"]
    if first:
      compared = measuring.compare(result["seconds"], first)
      summary["ratio"] = compared["ratio"]
      summary["ratio_quartiles"] = compared["ratio_quartiles"]
  return summary
