"""What the attention of several trainings has in common: section 5 with its spread.

From the lines of `plot_attention --json`, one file for each training, come means over
the seeds with their standard errors: how much weight lies near the query, how weights
are distributed, and what mixtures lean on, each beside its value before training.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import pathlib
import statistics
from typing import Any

import numpy as np
from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools.reproduction import lines as lines_lib
from synthesizer_mtf.tools.reproduction import rankings

Row = dict[str, Any]

# Titles of the columns, and keys of the summaries.
_COLUMNS = {"half within": "half_mass_window", "entropy": "entropy",
            "stddev": "stddev", "max": "max", "0.1-0.2": "share_0.1_to_0.2"}
_STATES = ("trained", "initial", "uniform")
# Of a histogram a table of seeds has no use, and it is most of a line.
_LEFT_OUT = ("histogram", "bins")
_DIGITS = 6
_SHOWN = 3  # Digits in tables.


def read(paths: Iterable[str]) -> list[Row]:
  """Reads the lines of several trainings, without their histograms, to 6 digits.

  Args:
    paths: of files of `plot_attention --json`, one for each training, or of what
      `plot_attention --seeds` has written of them.

  Raises:
    ValueError: a line is cut off or no such line, or a head is there twice.
  """
  rows, seen = [], {}
  for path in paths:
    for where, line in lines_lib.objects(path):
      row = _row(where, line, pathlib.Path(path).stem)
      lines_lib.check_new(where, f"head {row['head']} of {row['layer']} of the "
                          f"training {row['run']!r}", seen)
      rows.append(row)
  if not rows:
    raise ValueError("--seeds names no file with lines; give those that --json wrote.")
  return rows


def _row(where, line, stem):
  missing = [key for key in ("layer", "head", "attention", "windows", *_STATES)
             if key not in line]
  if missing:
    raise ValueError(f"{where} has no {missing[0]!r}, so it is no line of "
                     "plot_attention --json; give such files.")
  row = {"run": stem, **line}
  for state in _STATES:
    row[state] = {key: np.round(value, _DIGITS).tolist()
                  for key, value in row[state].items() if key not in _LEFT_OUT}
  return {key: value for key, value in row.items() if key not in _LEFT_OUT}


def markdown(rows: Sequence[Row], window: int) -> str:
  """The tables and the sentences.

  Args:
    rows: what `read` returns.
    window: one of their windows, in tokens to either side.
  """
  groups = _groups(rows)
  tables = [_weights(groups, window), _leaning(groups)]
  return "\n\n".join([
      *(tabular.markdown(table) for table in tables if len(table) > 1),
      "\n".join(f"- {text}" for text in _sentences(rows, window))])


def _groups(rows):
  """{(attention, layer): {run: [its heads]}}"""
  groups = {}
  for row in rows:
    runs = groups.setdefault((row["attention"], row["layer"]), {})
    runs.setdefault(row["run"], []).append(row)
  return groups


def _near(window):
  """What reads the weight within a window from a summary."""
  return lambda row, state: row[state]["window_mass"][row["windows"].index(window)]


def _of_key(key):
  """What reads one number of a summary."""
  return lambda row, state: row[state][key]


def _estimate(runs, read_value):
  """An `Estimate` over runs of the mean over their heads."""
  return rankings.estimate([statistics.mean(map(read_value, heads))
                            for heads in runs.values()])


def _by_state(runs, reader):
  return {state: _estimate(runs, lambda row, state=state: reader(row, state))
          for state in _STATES}


def _weights(groups, window):
  """Lines of a table: for each layer what its weights do, and did before."""
  readers = {f"within {window}": _near(window), **{
      title: _of_key(key) for title, key in _COLUMNS.items()}}
  lines = [["attention", "layer", "seeds", *readers]]
  alike = {}
  for (attention, layer), runs in groups.items():
    found = [_by_state(runs, reader) for reader in readers.values()]
    lines.append([attention, layer, str(len(runs))] + [
        f"{of['trained'].text(_SHOWN)} ({of['initial'].mean:.{_SHOWN}f})"
        for of in found])
    alike[layer] = ["all alike", layer, "-"] + [
        f"{of['uniform'].mean:.{_SHOWN}f}" for of in found]
  return lines + list(alike.values())


def _leaning(groups):
  """Lines of a table: the alpha of each part of a mixture."""
  lines = [["attention", "layer", "part", "alpha", "before", "least head",
            "most head"]]
  for (attention, layer), runs in groups.items():
    heads = [head for each in runs.values() for head in each]
    for part in heads[0].get("alpha", ()):
      alphas = [head["alpha"][part] for head in heads]
      before = _estimate(runs, lambda row, part=part: row["initial_alpha"][part])
      lines.append([
          attention, layer, part,
          _estimate(runs, lambda row, part=part: row["alpha"][part]).text(_SHOWN),
          *(f"{x:.{_SHOWN}f}" for x in (before.mean, min(alphas), max(alphas)))])
  return lines


def _sentences(rows, window) -> Iterator[str]:
  """What section 5 says in words, each with its number."""
  stacks = _groups([{**row, "layer": row["layer"].rpartition("/")[0]} for row in rows])
  for (attention, stack), runs in stacks.items():
    near = _by_state(runs, _near(window))
    half = _by_state(runs, _of_key("half_mass_window"))
    yield (f"{attention}, {stack}: {near['trained'].text(2)} of the weight lies "
           f"within {window} tokens ({near['initial'].mean:.2f} before training, "
           f"{near['uniform'].mean:.2f} if all keys weighed the same), half of it "
           f"within {half['trained'].text(1)} (before: {half['initial'].mean:.1f}).")
  for stack in dict.fromkeys(stack for _, stack in stacks):
    spreads = {attention: _estimate(runs, lambda row: row["trained"]["stddev"])
               for (attention, of), runs in stacks.items() if of == stack}
    names = sorted(spreads, key=lambda name: -spreads[name].mean)
    yield (f"Standard deviation of the weights, {stack}: " + " > ".join(
        f"{name} {spreads[name].text(_SHOWN)}" for name in names) + ".")
