"""Draws plans: time and memory of a step, or how they change with the topology."""

from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

_BYTES = {"parameter_bytes": "#9467bd", "optimizer_bytes": "#8c564b",
          "temporary_bytes": "#e377c2"}


def plot(plans: list[dict[str, Any]], path: str) -> bool:
  """Draws the time of a step and the memory of a core.

  Args:
    plans: the dicts that `planning.plan` returns; impossible ones are left out.
    path: the PNG file to write.

  Returns:
    whether there was anything to draw. If not, no file is written.
  """
  plans = [p for p in plans if p["status"] == "ok"]
  if not plans:
    return False
  sweep = len({p["topology"] for p in plans}) > 1
  height = 4.5 if sweep else 1.8 + 0.4 * len(plans)
  figure, axes = plt.subplots(
      1, 2, figsize=(11, height), layout="constrained", sharey=not sweep)
  timed = all("seconds" in p for p in plans)
  label, value = ("compiled ms per step", lambda p: 1e3 * p["seconds"]) if timed else (
      "10^9 operations of a core", lambda p: p["per_core"]["operations"] / 1e9)
  if sweep:
    _sweep(axes[0], plans, value, label)
    _sweep(axes[1], plans, lambda p: p["per_core"]["total_bytes"] / 2**30,
           "GiB per core")
  else:
    _bars(axes[0], plans, {"step": "#ff7f0e"}, lambda p, k: value(p), label)
    _bars(axes[1], plans, _BYTES, lambda p, k: p["per_core"][k] / 2**30,
          "GiB per core")
  _memory_limit(axes[1], plans, sweep)
  for axis in axes:
    axis.legend(frameon=False, fontsize="small", loc="upper center", ncols=4,
                bbox_to_anchor=(0.5, -0.15 if sweep else -0.55 / height - 0.05))
  title = "" if sweep else f"{plans[0]['topology']}, {plans[0]['mesh_shape']}, "
  figure.suptitle(f"{title}planned without a TPU", fontsize="small")
  figure.savefig(path, dpi=120)
  plt.close(figure)
  return True


def _bars(axis, plans, colors, value, label):
  """Draws horizontal bars of stacked parts, one bar for each plan."""
  left = [0.] * len(plans)
  for name, color in colors.items():
    widths = [value(p, name) for p in plans]
    axis.barh(range(len(plans)), widths, left=left, color=color,
              label=name.replace("_bytes", ""))
    left = [a + b for a, b in zip(left, widths)]
  axis.set_yticks(range(len(plans)), [p["name"] for p in plans])
  axis.set_ylim(len(plans) - 0.5, -0.5)
  axis.set_xlabel(label)


def _sweep(axis, plans, value, label):
  """Draws a line for each variant over the number of cores."""
  for name in dict.fromkeys(p["name"] for p in plans):
    points = sorted((p for p in plans if p["name"] == name),
                    key=lambda p: p["cores"])
    axis.plot([p["cores"] for p in points], [value(p) for p in points],
              marker="o", markersize=4, label=name)
  cores = sorted({p["cores"] for p in plans})
  axis.set_xscale("log", base=2)
  axis.set_yscale("log")
  axis.set_xticks(cores, [str(c) for c in cores])
  axis.grid(True, which="both", alpha=0.25)
  axis.set_xlabel("cores")
  axis.set_ylabel(label)


def _memory_limit(axis, plans, sweep):
  """Draws a dotted line at the memory of a core, for each generation of chips."""
  for limit in sorted({p["hbm_bytes"] for p in plans}):
    line = axis.axhline if sweep else axis.axvline
    line(limit / 2**30, color="black", linestyle=":", linewidth=0.8,
         label=f"memory of a core, {limit / 2**30:g} GiB")
