"""Compares two files of `reproduce`, seed by seed, with intervals and tests.

For each score of each row the comparison has the mean difference, B minus A, over the
seeds that both files have. It adds a 95% interval (Student's t), and p, corrected for
the number of differences.
"""

import numpy as np
import pandas as pd
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import lines

_KEY = ["row", "task", "score"]


def compare(paths: list[str], json_path: str | None) -> None:
  """Prints the comparison of two files as Markdown.

  Args:
    paths: the paths of A and B.
    json_path: the file to write the comparison to as JSON lines, or None.

  Raises:
    ValueError: the files cannot be compared.
  """
  arguments.check_folders(json_path)
  a, b = map(lines.read, paths)
  differing = list(lines.differing(a.setting, b.setting))
  if {"table", "study"} & {key for key, _, _ in differing}:
    raise checks.Error(f"{a.path} is of {_subject(a)} and {b.path} of {_subject(b)}; "
                       "compare two files of the same.")
  tested, single = _differences(a, b), list(_unpaired(a, b))
  print(_markdown(a, b, differing, tested, single))
  tabular.write_json([
      *map(_line, tested.index, tested.to_dict("records")), *single], json_path)


def _subject(of):
  """Returns the table or study of a file, such as "table 4"."""
  key = "study" if "study" in of.setting else "table"
  return f"{key} {of.setting[key]}"


def _differences(a, b):
  """Compares the scores that both files have, over their common seeds.

  Returns:
    a row for each value of `_KEY`. Its columns are "seeds", a list; "a" and "b", the
    means; and those that `over_seeds.tested` returns for the differences.
  """
  pairs = _scores(a, "a").merge(_scores(b, "b"), on=[*_KEY, "seed"])
  if pairs.empty:
    return pairs
  grouped = pairs.assign(
      difference=pairs["b"] - pairs["a"], size=pairs[["a", "b"]].abs().max(axis=1)
      ).groupby(_KEY, sort=False)
  tested = over_seeds.tested(pd.DataFrame({
      key: of["difference"].reset_index(drop=True) for key, of in grouped}),
      grouped["size"].max())
  return tested.assign(
      a=grouped["a"].mean(), b=grouped["b"].mean(), seeds=grouped["seed"].agg(list))


def _scores(of, name):
  return pd.DataFrame(
      [(run["row"], run["task"], score, run["seed"], value)
       for run in of.runs for score, value in run["scores"].items()],
      columns=[*_KEY, "seed", name])


def _line(key, of):
  """Returns a difference as an object for JSON."""
  several = not np.isnan(of["low"])
  return {
      "kind": "difference", "format": lines.FORMAT, **dict(zip(_KEY, key)),
      "seeds": of["seeds"], "pairs": len(of["seeds"]), "a": of["a"], "b": of["b"],
      "difference": of["mean"],
      "interval": [of["low"], of["high"]] if several else None,
      "excludes_zero": not of["low"] <= 0 <= of["high"] if several else None,
      "p": of["p"] if several else None,
      "significant": of["p"] < over_seeds.LEVEL if several else None}


def _unpaired(a, b):
  """Yields a dict for each run, or some of its scores, that only one file has.

  The keys are "row", "task" and "seed"; "only_in", which is "a" or "b"; "scores", a
  list of the scores that the other file lacks; and "reason", why a run has no scores.
  """
  for name, of, other in (("a", a, b), ("b", b, a)):
    others = {_key(run): run for run in other.runs}
    for run in of.runs:
      twin = others.get(_key(run), {"status": "ok", "scores": {}})
      missing = [score for score in run["scores"] if score not in twin["scores"]]
      if missing or _key(run) not in others:
        yield {"kind": "unpaired", "format": lines.FORMAT,
               **{key: run[key] for key in ("row", "task", "seed")},
               "only_in": name, "scores": missing,
               "reason": _reason(twin if missing else run)}


def _key(run):
  return run["row"], run["task"], run["seed"]


def _reason(run):
  """Returns why a run has no scores, or None."""
  if run["status"] == "ok":
    return None
  return ": ".join(filter(None, [run["status"], run.get("reason")]))


def _markdown(a, b, differing, tested, single):
  return "\n".join([
      f"# {_subject(a).capitalize()}, compared", "",
      f"- A: {a.path}", f"- B: {b.path}", "",
      *_warnings(differing), *_table(tested), *_alone(single)])


def _warnings(differing):
  if differing:
    keys = "; ".join(f"{key} {x} in A, {y} in B" for key, x, y in differing)
    yield f"WARNING: the settings differ: {keys}."
    yield ""


def _table(tested):
  if tested.empty:
    yield "No row, task, seed and score is in both files."
    return
  yield tabular.markdown([
      [*_KEY, "pairs", "A", "B", "B - A", "95% interval", "p", ""],
      *([*key, str(len(of["seeds"])), f"{of['a']:.5g}", f"{of['b']:.5g}",
         *over_seeds.cells(of, "+.4g")] for key, of in tested.iterrows())])
  yield f"\nDifferences are B - A, each of the same seed. {over_seeds.note(tested)}"
  if (tested["count"] == 1).any():
    yield "One pair has no interval: an interval needs two seeds in both files."


def _alone(single):
  if single:
    yield "\nIn one file only:\n"
  for line in single:
    said = ", ".join(line["scores"]) or "no scores"
    reason = f" ({_who(line)} {line['reason']})" if line["reason"] else ""
    yield (f"- {line['only_in'].upper()}: {line['row']} on {line['task']}, seed "
           f"{line['seed']}: {said}{reason}")


def _who(line):
  """Returns the letter of the file whose run the reason is about."""
  return "B" if (line["only_in"] == "a") == bool(line["scores"]) else "A"
