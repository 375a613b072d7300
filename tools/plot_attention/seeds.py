"""Summarizes the attention of several training runs: section 5 of the paper over seeds.

This module reads the lines of `plot_attention --json`, one file for each training run.
It gives means over the seeds, with standard errors, of the weight near the query, the
distribution of weights, and the parts that mixtures prefer. Beside each mean is its
value before training.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import pathlib
from typing import Any

import numpy as np
import pandas as pd
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import lines as lines_lib

Row = dict[str, Any]

# From the titles of the columns to the keys of the summaries.
_COLUMNS = {"half within": "half_mass_window", "entropy": "entropy",
            "stddev": "stddev", "max": "max", "0.1-0.2": "share_0.1_to_0.2"}
_STATES = ("trained", "initial", "uniform")
# No table over seeds uses the histogram, which takes most of a line.
_LEFT_OUT = ("histogram", "bins")
_DIGITS = 6
_SHOWN = 3  # Digits in tables.


def read(paths: Iterable[str]) -> list[Row]:
  """Reads the lines of several training runs, without their histograms, to 6 digits.

  Args:
    paths: the files of `plot_attention --json`, one for each training run, or the file
      that `plot_attention --seeds` has written from them.

  Raises:
    ValueError: a line is cut off or has another format, or a head occurs twice.
  """
  rows, seen = [], {}
  for path in paths:
    for where, line in lines_lib.objects(path):
      row = _row(where, line, pathlib.Path(path).stem)
      lines_lib.check_new(where, f"head {row['head']} of {row['layer']} of the "
                          f"training {row['run']!r}", seen)
      rows.append(row)
  if not rows:
    raise checks.Error(
        "--seeds names no file with lines; give those that --json wrote.")
  return rows


def _row(where, line, stem):
  missing = [key for key in ("layer", "head", "attention", "windows", *_STATES)
             if key not in line]
  if missing:
    raise checks.Error(f"{where} has no {missing[0]!r}, so it is not a line of "
                       "plot_attention --json; give such files.")
  row = {"run": stem, **line}
  for state in _STATES:
    row[state] = {key: np.round(value, _DIGITS).tolist()
                  for key, value in row[state].items() if key not in _LEFT_OUT}
  return {key: value for key, value in row.items() if key not in _LEFT_OUT}


def markdown(rows: Sequence[Row], window: int) -> str:
  """Returns the tables and the sentences of section 5 as Markdown.

  Args:
    rows: what `read` returns.
    window: one of the rows' windows, in tokens to either side.
  """
  columns = {f"within {window}": "near", **_COLUMNS}
  each_head = heads(rows, window)
  tables = [_weights(each_head, columns), _leaning(rows)]
  return "\n\n".join([
      *(tabular.markdown(table) for table in tables if len(table) > 1),
      "\n".join(f"- {text}" for text in _sentences(each_head, window))])


def heads(rows: Sequence[Row], window: int) -> pd.DataFrame:
  """Returns a row for each head, with columns such as "trained entropy"."""
  return pd.DataFrame([{
      **{key: row.get(key) for key in ("attention", "layer", "run")},
      **{f"{state} {key}": value for state in _STATES
         for key, value in row[state].items() if np.isscalar(value)},
      **{f"{state} near": row[state]["window_mass"][row["windows"].index(window)]
         for state in _STATES}} for row in rows])


def _over_runs(table, by):
  """Yields (group, estimates over the group's runs of the means over heads)."""
  means = table.groupby([*by, "run"], sort=False).mean(numeric_only=True)
  for group, of in means.groupby(by, sort=False):
    yield group, over_seeds.estimates(of)


def _weights(table, columns):
  """Returns a table's lines: the weights of each layer, after and before training."""
  lines, uniform = [["attention", "layer", "seeds", *columns]], {}
  for (attention, layer), means in _over_runs(table, ["attention", "layer"]):
    mean = means["mean"]
    lines.append([attention, layer, f"{means['count'].max():.0f}"] + [
        f"{over_seeds.text(means.loc[f'trained {key}'], _SHOWN)} "
        f"({mean[f'initial {key}']:.{_SHOWN}f})" for key in columns.values()])
    uniform[layer] = ["uniform", layer, "-"] + [
        f"{mean[f'uniform {key}']:.{_SHOWN}f}" for key in columns.values()]
  return lines + list(uniform.values())


def _leaning(rows):
  """Returns a table's lines: the alpha of each part of a mixture."""
  lines = [["attention", "layer", "part", "alpha", "before", "least head",
            "most head"]]
  by = ["attention", "layer", "part"]
  alphas = pd.DataFrame(
      [(row["attention"], row["layer"], part, row["run"], alpha,
        row["initial_alpha"][part])
       for row in rows for part, alpha in row.get("alpha", {}).items()],
      columns=[*by, "run", "alpha", "before"])
  ends = alphas.groupby(by)["alpha"].agg(["min", "max"])
  for group, means in _over_runs(alphas, by):
    lines.append([*group, over_seeds.text(means.loc["alpha"], _SHOWN), *(
        f"{x:.{_SHOWN}f}" for x in (means["mean"]["before"], *ends.loc[group]))])
  return lines


def _sentences(table, window) -> Iterator[str]:
  """Yields the sentences of section 5, each with its figures."""
  stacks = table["layer"].str.rpartition("/")[0].rename("stack")
  spreads = {}
  for (attention, stack), means in _over_runs(
      table.assign(stack=stacks), ["attention", "stack"]):
    mean = means["mean"]
    near, half, spread = (means.loc[f"trained {key}"] for key in (
        "near", "half_mass_window", "stddev"))
    yield (f"{attention}, {stack}: {over_seeds.text(near, 2)} of the weight lies "
           f"within {window} tokens ({mean['initial near']:.2f} before training, "
           f"{mean['uniform near']:.2f} if all keys weighed the same), half of it "
           f"within {over_seeds.text(half, 1)} (before: "
           f"{mean['initial half_mass_window']:.1f}).")
    spreads.setdefault(stack, {})[attention] = spread
  for stack, of in spreads.items():
    names = sorted(of, key=lambda name: -of[name]["mean"])
    yield (f"Standard deviation of the weights, {stack}: " + " > ".join(
        f"{name} {over_seeds.text(of[name], _SHOWN)}" for name in names) + ".")
