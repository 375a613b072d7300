"""Draws plans: the time or the work of a step, and the memory of a core."""

from typing import Any

from matplotlib import pyplot as plt

_BYTES = {"parameter_bytes": "#9467bd", "optimizer_bytes": "#8c564b",
          "temporary_bytes": "#e377c2"}


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
  height = 1.8 + 0.4 * len(plans)
  figure, (work, memory) = plt.subplots(
      1, 2, figsize=(11, height), layout="constrained", sharey=True)
  if all("seconds" in p for p in plans):
    _bars(work, {"ms of a step, as compiled": [1e3 * p["seconds"] for p in plans]})
  else:
    _bars(work, {"10^9 operations of a core": [
        p["per_core"]["operations"] / 1e9 for p in plans]})
  _bars(memory, {f"GiB of a core: {name.removesuffix('_bytes')}": [
      p["per_core"][name] / 2**30 for p in plans] for name in _BYTES})
  work.set_yticks(range(len(plans)), [f"{p['name']}, {p['topology']}" for p in plans])
  work.invert_yaxis()
  for limit in sorted({p["hbm_bytes"] for p in plans}):
    memory.axvline(limit / 2**30, color="black", linestyle=":", linewidth=0.8,
                   label=f"memory of a core, {limit / 2**30:g} GiB")
  for axis in (work, memory):
    axis.legend(frameon=False, fontsize="small", loc="upper center", ncols=2,
                bbox_to_anchor=(0.5, -0.2 / height - 0.05))
  figure.suptitle("planned without the devices", fontsize="small")
  figure.savefig(path, dpi=120)
  plt.close(figure)
  return True


def _bars(axis, parts):
  """Draws the parts of each bar, one after the other; `parts` are by name."""
  left = [0.] * len(next(iter(parts.values())))
  colors = [*_BYTES.values()] if len(parts) > 1 else ["#ff7f0e"]
  for (name, widths), color in zip(parts.items(), colors):
    axis.barh(range(len(widths)), widths, left=left, color=color, label=name)
    left = [a + b for a, b in zip(left, widths)]
