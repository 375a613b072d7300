"""Measures the rows of the benchmark in turns, as medians and ratios of pairs.

Other work on the machine slows all rows of a round alike. So rows run in turns, and
each row is compared with the reference, by default `SelfAttention`, in the same round.
The results are dicts, one for each row and measure. `result_tables.COLUMNS` and
`ratio_plot` read them.
"""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import json
import random
import subprocess
import sys
import time
import traceback
from typing import Any

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import breakdown
from synthesizer_mtf.tools.benchmark import model

# A function that takes the number of runs done, and the name of the current run.
Progress = Callable[[int, str], None]

# Seconds to wait before each run beside another program, until the OpenMP threads of
# the run before it sleep. Those of Intel's OpenMP look for more work for 0.2 seconds.
_REST = 0.3


class NotPossibleError(checks.Error):
  """Another program lacks a package, or the package refuses."""


def measure_time(rows: list[attentions.Row], config: model.Configuration,
                 measure: str, warmup: int, repeats: int, progress: Progress,
                 traced: int = 0,
                 reference: str = attentions.STOCK) -> list[dict[str, Any]]:
  """Times one measure of all rows, in turns.

  Args:
    rows: a list of `attentions.Row`, the reference among them.
    measure: a key of `model.MEASURES`.
    warmup: the number of rounds that do not count.
    repeats: the number of rounds that count.
    progress: a function (number of runs done, name of the current run).
    traced: the number of traced rounds after these, to split the time into parts.
    reference: the name of the row that other rows are compared with.

  Returns:
    a list with a dict for each row, with its `status`: "ok", "not possible" or
    "failed", with a `reason`. Times are in seconds.
  """
  results = {row.name: _description(row, config, measure) for row in rows}
  programs = {}
  for row in rows:
    progress(0, f"building {row.name}")
    program = _build(row, config, measure, results[row.name])
    if program:
      programs[row.name] = program
  for result in results.values():
    result.update(warmup=warmup, repeats=repeats, reference=reference)
  seconds = take_turns(programs, results, warmup, repeats, progress)
  _split_times(programs, results, traced, progress)
  for name, program in programs.items():
    program.close()
    result = results[name]
    if result["status"] == "ok":
      result.update(compare(seconds[name], seconds.get(reference),
                            _floor(seconds, program, reference)))
      result.update(_sizes_and_rates(program, result["median_seconds"], result))
      _scale_parts(result)
  return list(results.values())


def _floor(seconds, program, reference):
  """The floor's times; None for another program, or with another reference."""
  if reference != attentions.STOCK or not isinstance(program, model.Program):
    return None
  return seconds.get(attentions.FLOOR)


def _description(row, config, measure):
  return {
      "row": row.name,
      "family": row.family,
      "measure": measure,
      "inputs": config.inputs,
      "targets": config.targets,
      "configuration": dataclasses.asdict(config),
      "gin": row.bindings(config.inputs, config.targets),
      "device": config.device,
      "status": "ok",
      "reason": None,
      **_paper(row),
  }


def _paper(row):
  paper = tables.TABLE_4.get(row.paper)
  if paper is None:
    return {}
  return {"paper_row": paper.name, "paper_ratio": paper.ratio,
          "paper_steps_per_second": paper.steps_per_second,
          "paper_parameters_millions": paper.parameters_millions,
          "paper_tflops": paper.tflops}


def _build(row, config, measure, result):
  """Returns the row's program, or None after noting the reason in `result`."""
  if _is_obstructed(row, config, measure, result):
    return None
  try:
    return (row.elsewhere or model.build)(row, config, measure)
  except NotPossibleError as error:
    result.update(status="not possible", reason=str(error))
  except Exception as error:
    _note_failure(result, error)
  return None


def _is_obstructed(row, config, measure, result):
  """Returns whether the row cannot be measured; notes the reason in `result`."""
  obstacle = (row.elsewhere.obstacle(row, config, measure) if row.elsewhere else
              row.obstacle(config.inputs, config.targets))
  if obstacle:
    result.update(status="not possible", reason=obstacle)
  return bool(obstacle)


def _note_failure(result, error):
  """Notes why a row failed; its traceback goes to standard error."""
  traceback.print_exception(error)
  lines = str(error).strip().splitlines() or [type(error).__name__]
  result.update(status="failed", reason=f"{type(error).__name__}: {lines[0]}")


def take_turns(programs: dict[str, model.Program], results: dict[str, dict],
               warmup: int, repeats: int,
               progress: Progress) -> dict[str, list[float]]:
  """Runs round i of all programs before round i + 1.

  Each round has an order of its own, so no row always follows the same row. The orders
  are the same in each call. A program that fails is left out of all later rounds.

  Returns:
    a dict from names to lists of seconds, without the programs that failed.
  """
  seconds, generator = {name: [] for name in programs}, random.Random(0)
  is_beside_others = not all(
      isinstance(program, model.Program) for program in programs.values())
  for i in range(warmup + repeats):
    for name in generator.sample(list(seconds), len(seconds)):
      if is_beside_others:
        time.sleep(_REST)
      began = time.perf_counter()
      try:
        programs[name].run()
      except Exception as error:
        _note_failure(results[name], error)
        del seconds[name]
        continue
      if i >= warmup:
        seconds[name].append(time.perf_counter() - began)
      progress(1, name)
  return seconds


def _split_times(programs, results, traced, progress):
  """Sets `parts_seconds` and `bare_products_seconds` of the rows of this process.

  `parts_seconds` is the sum over all traced rounds. Rows of other programs and
  rows that failed do not get these entries.
  """
  for _ in range(traced):
    for name, program in programs.items():
      if results[name]["status"] == "ok" and isinstance(program, model.Program):
        results[name].setdefault("parts_seconds", collections.Counter()).update(
            program.seconds_of_parts())
      progress(1, name)
  for name, result in results.items():
    if "parts_seconds" in result:
      result["bare_products_seconds"] = programs[name].seconds_of_bare_products()


def _scale_parts(result):
  """Scales the parts to the time of a step without tracing, which itself takes time."""
  parts = result.get("parts_seconds", {})
  total = sum(parts.get(part, 0) for part in breakdown.PARTS)
  for part in parts:
    parts[part] *= result["median_seconds"] / total
  if parts:
    result["products_seconds"] = parts.pop(breakdown.PRODUCTS)


def compare(seconds: list[float], stock_seconds: list[float] | None,
            floor_seconds: list[float] | None = None) -> dict[str, Any]:
  """Returns median and quartiles of a row's times and of its ratios to the reference.

  Args:
    seconds: a list, one time for each round.
    stock_seconds: the times of the reference in the same rounds, or None.
    floor_seconds: the times of the floor in the same rounds, or None.

  Returns:
    a dict. `ratio` is how many times as fast as the reference the row is. `share` is
    the row's time above the floor, divided by the reference's time above the floor.
  """
  median, quartiles = _spread(seconds)
  summary = {"median_seconds": median, "quartiles_seconds": quartiles,
             "seconds": seconds}
  if stock_seconds:
    summary["ratio"], summary["ratio_quartiles"] = _spread(
        np.divide(stock_seconds, seconds))
  if stock_seconds and floor_seconds:
    stock = np.subtract(stock_seconds, floor_seconds)
    above = np.subtract(seconds, floor_seconds)[stock > 0] / stock[stock > 0]
    if above.size:
      summary["share"], summary["share_quartiles"] = _spread(above)
  return summary


def _spread(values):
  """Returns the median, and a list of the first and the third quartile."""
  low, median, high = np.percentile(values, [25, 50, 75]).tolist()
  return median, [low, high]


def _sizes_and_rates(program, median, result):
  """Returns a row's sizes, and its rates at the median time in seconds."""
  rates = {**program.sizes, "steps_per_second": 1 / median}
  if not isinstance(program, model.Program):
    rates["row_versions"] = program.versions
  if result["measure"] == "decode":
    # Mesh does not count how often the loop of decoding runs.
    rates.pop("multiply_adds", None)
    config = result["configuration"]
    tokens = config["decode_batch"] * config["targets"]
    rates["tokens_per_second"] = tokens / median
    rates["tokens_per_second_quartiles"] = [
        tokens / seconds for seconds in reversed(result["quartiles_seconds"])]
  elif "multiply_adds" in rates:
    rates["einsum_tflops"] = 2 * rates["multiply_adds"] / median / 1e12
  return rates


def measure_memory(rows: list[attentions.Row], config: model.Configuration,
                   repeats: int, progress: Progress,
                   modules: Sequence[str] = ()) -> list[dict[str, Any]]:
  """Measures the peak memory of a process that trains, for each row.

  Args:
    rows: a list of `attentions.Row`. Shares need stock and the floor among them.
    repeats: processes for each row. The smallest peak counts, because larger peaks
      are due to chance.
    progress: a function (number of processes done, name of the current run).
    modules: the modules that the processes import.

  Returns:
    a list with a dict for each row. `memory_share` is the row's peak minus the floor's,
    divided by stock's peak minus the floor's.
  """
  results = [{**_description(row, config, "memory"), "warmup": 0, "repeats": repeats}
             for row in rows]
  for _ in range(repeats):
    for row, result in zip(rows, results):
      if not _is_obstructed(row, config, "memory", result) and (
          result["status"] == "ok"):
        _measure_process(row, config, modules, result)
      progress(1, row.name)
  add_shares({r["row"]: r for r in results if r["status"] == "ok"})
  return results


def _measure_process(row, config, modules, result):
  """Notes the peak of one fresh process in `result`."""
  process = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.tools.benchmark.memory", row.name,
       json.dumps(dataclasses.asdict(config)), *modules],
      capture_output=True, text=True, check=False)
  if process.returncode:
    print(process.stderr, file=sys.stderr)
    lines = process.stderr.strip().splitlines() or ["no message"]
    result.update(status="failed", reason=(
        f"exit status {process.returncode}: {lines[-1]}"))
    return
  peak = float(process.stdout.split()[-1])
  result.setdefault("peaks_mebibytes", []).append(peak)
  result["peak_mebibytes"] = min(result["peaks_mebibytes"])


def add_shares(results: dict[str, dict]) -> None:
  """Sets `memory_share` if there are peaks of both stock and the floor."""
  if not {attentions.STOCK, attentions.FLOOR} <= set(results):
    return
  floor = results[attentions.FLOOR]["peak_mebibytes"]
  stock = results[attentions.STOCK]["peak_mebibytes"] - floor
  for result in results.values():
    if stock > 0:
      result["memory_share"] = (result["peak_mebibytes"] - floor) / stock
