"""Two files of `reproduce`, seed by seed: what has changed, and how surely.

Each score of each row has the mean difference, B minus A, over the seeds that
both files have, with a 95% interval (Student's t).
"""

from collections.abc import Iterator
import statistics
from typing import Any

from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools import arguments
from synthesizer_mtf.tools.reproduction import lines
from synthesizer_mtf.tools.reproduction import rankings

_NOTE = (
    "Differences are B - A, each of the same seed; * marks an interval without "
    "0. Each interval stands for itself: where nothing has changed, one of "
    "twenty is marked.")


def compare(paths: list[str], json_path: str | None) -> None:
  """Prints the comparison of two files as Markdown.

  Args:
    paths: A and B.
    json_path: where JSON lines of it are written, or None.

  Raises:
    ValueError: they cannot be compared.
  """
  arguments.check_folders(json_path)
  a, b = map(lines.read, paths)
  differing = differing_settings(a, b)
  found, single = differences(a, b), list(unpaired(a, b))
  print(_markdown(a, b, differing, found, single))
  if json_path:
    tabular.write_json([*found, *single], json_path)


def differing_settings(a: lines.Results,
                       b: lines.Results) -> dict[str, tuple[Any, Any]]:
  """The keys in which two settings differ, with both values.

  Raises:
    ValueError: they are of two tables or studies.
  """
  differing = {key: (a.setting.get(key), b.setting.get(key))
               for key in {**a.setting, **b.setting}
               if a.setting.get(key) != b.setting.get(key)}
  if "table" in differing or "study" in differing:
    raise ValueError(
        f"{a.path} is of {_subject(a)} and {b.path} of {_subject(b)}; compare "
        "two files of the same.")
  return differing


def _subject(of):
  """What a file is of, as in "table 4"."""
  key = "study" if "study" in of.setting else "table"
  return f"{key} {of.setting[key]}"


def differences(a: lines.Results, b: lines.Results) -> list[dict[str, Any]]:
  """Compares what both have, over the seeds that both have.

  Returns:
    dicts with "row", "task", "score", "seeds", "pairs", "a" and "b", the means,
    "difference", "interval", and "excludes_zero"; the last two are None for one
    pair.
  """
  ours, theirs = _scores(a), _scores(b)
  pairs = [key for key in ours if key in theirs]
  grouped = {}
  for row, task, seed, score in pairs:
    grouped.setdefault((row, task, score), []).append(seed)
  return [_difference(key, seeds, *([of[row, task, seed, score]
                                     for seed in seeds] for of in (ours, theirs)))
          for key, seeds in grouped.items() for row, task, score in [key]]


def _scores(of):
  return {(run["row"], run["task"], run["seed"], name): value
          for run in of.runs for name, value in run["scores"].items()}


def _difference(key, seeds, ours, theirs):
  apart = [y - x for x, y in zip(ours, theirs)]
  estimate = rankings.estimate(apart)
  interval = list(estimate.interval) if len(apart) > 1 else None
  return {
      "kind": "difference", "format": lines.FORMAT,
      **dict(zip(("row", "task", "score"), key)), "seeds": seeds,
      "pairs": len(seeds), "a": statistics.fmean(ours),
      "b": statistics.fmean(theirs), "difference": estimate.mean, "interval": interval,
      "excludes_zero": interval and not interval[0] <= 0 <= interval[1]}


def unpaired(a: lines.Results, b: lines.Results) -> Iterator[dict[str, Any]]:
  """Yields what one of the files has alone: a dict for each of its runs.

  It has "row", "task", "seed", "only_in", which is "a" or "b", the "scores" that
  are missing in the other, a list, and the "reason" why one of them has none.
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
  """Why a run has no scores, or None."""
  if run["status"] == "ok":
    return None
  return ": ".join(filter(None, [run["status"], run.get("reason")]))


def _markdown(a, b, differing, found, single):
  return "\n".join([
      f"# {_subject(a).capitalize()}, compared", "",
      f"- A: {a.path}", f"- B: {b.path}", "",
      *_warnings(differing), *_table(found), "",
      *([_NOTE] if found else []), *_single_pairs(found), *_unpaired(single)])


def _warnings(differing):
  if differing:
    keys = "; ".join(f"{key} {x} in A, {y} in B"
                     for key, (x, y) in differing.items())
    yield f"WARNING: the settings differ: {keys}."
    yield ""


def _table(found):
  if not found:
    return ["No row, task, seed and score is in both files."]
  return tabular.markdown([
      ["row", "task", "score", "pairs", "A", "B", "B - A", "95% interval", ""],
      *map(_cells, found)]).splitlines()


def _cells(line):
  interval = line["interval"]
  return [
      line["row"], line["task"], line["score"], str(line["pairs"]),
      f"{line['a']:.5g}", f"{line['b']:.5g}", f"{line['difference']:+.4g}",
      f"{interval[0]:+.4g} to {interval[1]:+.4g}" if interval else "-",
      "*" if line["excludes_zero"] else ""]


def _single_pairs(found):
  if any(line["pairs"] == 1 for line in found):
    yield "One pair has no interval: it takes two seeds in both files."


def _unpaired(single):
  if single:
    yield "\nIn one file only:\n"
  for line in single:
    said = ", ".join(line["scores"]) or "no scores"
    reason = f" ({_who(line)} {line['reason']})" if line["reason"] else ""
    yield (f"- {line['only_in'].upper()}: {line['row']} on {line['task']}, seed "
           f"{line['seed']}: {said}{reason}")


def _who(line):
  """Whose reason it is: of the file without scores."""
  return "B" if (line["only_in"] == "a") == bool(line["scores"]) else "A"
