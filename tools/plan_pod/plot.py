"""Draws plans: the time or the work of a step, and the memory of a core."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib import ticker
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.tools.plan_pod import compiling

_BYTES = ("parameter_bytes", "optimizer_bytes", "temporary_bytes")


def plot(plans: list[dict[str, Any]], path: str) -> bool:
  """Draws a bar for each plan.

  Args:
    plans: the dicts that `planning.plan` returns; impossible ones are left out.
    path: the PNG file to write.

  Returns:
    whether there was anything to draw. If not, no file is written.
  """
  plans = [p for p in plans if p["status"] == "ok"]
  if not plans:
    return False
  height = 1.8 + 0.3 * len(plans)
  figure, (work, memory) = plt.subplots(
      1, 2, figsize=(backend.WIDTH, height), layout="constrained", sharey=True)
  if all("seconds" in p for p in plans):
    _bars(work, {"step": [1e3 * p["seconds"] for p in plans]}, "C8")
    most = [1e3 * p["most_seconds"] for p in plans]
    work.hlines(range(len(plans)), [bar.get_width() for bar in work.patches], most,
                color="black")
    work.set_xlabel("ms of a step, as the compiler estimates;\n"
                    "lines: where packed rows hold several examples")
  else:
    _bars(work, {"step": [p["per_core"]["operations"] / 1e9 for p in plans]}, "C8")
    work.set_xlabel("10^9 operations of a core")
  _bars(memory, {name.removesuffix("_bytes"): [
      p["per_core"][name] / 2**30 for p in plans] for name in _BYTES})
  is_bound = any(p["compiler"] == compiling.HOST for p in plans)
  memory.set_xlabel(
      "GiB of a core" + ", temporary at most (XLA for the host)" * is_bound)
  work.set_yticks(range(len(plans)), [f"{p['name']}, {p['topology']}" for p in plans])
  work.invert_yaxis()
  for limit in sorted({p["hbm_bytes"] for p in plans}):
    memory.axvline(limit / 2**30, color="black", linestyle=":", linewidth=0.8,
                   label=f"memory of a core, {limit / 2**30:g} GiB")
  figure.legend(*memory.get_legend_handles_labels(), ncols=4,
                loc="outside lower center")
  figure.suptitle(_caption(plans))
  figure.savefig(path)
  plt.close(figure)
  return True


def _caption(plans):
  """Returns what all plans have in common: the gin files, the mode and the batch."""
  files = dict.fromkeys(" ".join(p["gin_files"]) for p in plans)
  batches = dict.fromkeys(f"{p['batch_size']}" for p in plans)
  modes = dict.fromkeys(p["mode"] for p in plans)
  lengths = dict.fromkeys("/".join(map(str, p["sequence_length"].values()))
                          for p in plans)
  return (f"{', '.join(files)}: {', '.join(modes)}, batch {', '.join(batches)} of "
          f"{', '.join(lengths)} tokens; planned without the devices")


def _bars(axis, parts, color=None):
  """Draws the parts of each bar, one after the other; `parts` are by name."""
  left = [0.] * len(next(iter(parts.values())))
  for name, widths in parts.items():
    axis.barh(range(len(widths)), widths, left=left, label=name, color=color)
    left = [a + b for a, b in zip(left, widths)]
  axis.xaxis.set_major_locator(ticker.MaxNLocator(5))
