"""Draws the lengths of a task's features from the findings; reads no data itself."""

from matplotlib import pyplot as plt
import numpy as np
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.tools.inspect_task import task_reading


def plot(findings: task_reading.Findings, path: str) -> None:
  """Writes a PNG file: for each feature a histogram of its lengths."""
  keys = list(findings.tokens)
  figure, axes = plt.subplots(
      1, len(keys), squeeze=False, layout="constrained",
      figsize=(backend.WIDTH, 3.6))
  for axis, key in zip(axes[0], keys):
    _histogram(axis, findings, key)
  axes[0][0].set_ylabel("examples")
  count = len(findings.tokens[keys[0]])
  figure.suptitle(f"{findings.name}, {findings.split}: "
                  f"{'all' if findings.whole else 'the first'} {count:,} examples")
  figure.savefig(path)
  plt.close(figure)


def _histogram(axis, findings, key):
  sizes = np.concatenate([member.sizes[key] for member in findings.members.values()])
  limit = findings.lengths[key]
  # All lengths far beyond the limit share one bar at the right.
  most = max(limit * 1.5, 8)
  bins = np.linspace(0, most, 49)
  axis.hist(np.minimum(sizes, most), bins=bins, color="C0")
  axis.axvline(limit, color="C2", linewidth=1.2)
  share = task_reading.share_in_words(findings.cut(key), f" cut at {limit}")
  axis.set_title(f"{key}: median {np.median(sizes):.0f}, longest {sizes.max():,}, "
                 f"\n{share}")
  if len(findings.members) > 1:
    axis.text(0.98, 0.97, "\n".join(
        f"{name}: {task_reading.share_in_words(member.cut(key, limit), ' cut')}"
        for name, member in findings.members.items()), transform=axis.transAxes,
              ha="right", va="top", fontsize="small",
              bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8})
  beyond = " (longer ones at the right end)" if sizes.max() > most else ""
  axis.set_xlabel(f"tokens{beyond}")
