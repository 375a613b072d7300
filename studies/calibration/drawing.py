"""Draws what each head is worth, and the curve over the share of replaced heads."""

from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np
from studies.calibration import heads as heads_module
from synthesizer_mtf.tools.plot_attention import figures

_STYLES = {"cost": "-", "divergence": ":", "trained": "--"}
_LABELS = {"cost": "cost", "divergence": "divergence", "trained": "trained weight"}
_MOST_NUMBERS = 16  # With more heads in a row, their numbers would overlap.


def draw(heads: Sequence[heads_module.Head], points: Sequence[heads_module.Point],
         words: Sequence[str]) -> plt.Figure:
  """Draws a map of the heads for each figure of the table, and the curves below.

  Args:
    heads: what `heads.measure` returns.
    points: what `heads.curve` returns.
    words: the words of --to.
  """
  layers = list(dict.fromkeys(each.layer for each in heads))
  count = 1 + max(each.head for each in heads)
  stacks = list(dict.fromkeys(point.stack for point in points))
  columns = max(1 + len(words), len(stacks))
  sizes = 0.30 * len(layers) + 1.1, 3.4
  figure = plt.figure(layout="constrained", figsize=(
      max(3.4, 0.36 * min(count, _MOST_NUMBERS) + 1.3) * columns, sum(sizes)))
  above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=sizes).flat
  axes = above.subplots(1, 1 + len(words), squeeze=False)[0]
  maps = {"divergence from the mean, nats": {
      (each.layer, each.head): each.divergence for each in heads}}
  maps |= {f"cost of {word} in this head alone, %": {
      (each.layer, each.head): 100 * each.costs[word].cost
      for each in heads if word in each.costs} for word in words}
  first, *others = maps.values()
  top = max(max(each.values()) for each in others)  # One scale for all words.
  for axis, (title, values) in zip(axes, maps.items()):
    _map(axis, values, layers, count, max(values.values()) if values is first else top)
    axis.set_title(title, fontsize="medium")
  axes[0].set_ylabel("layer")
  _curves(below, points, words, stacks)
  return figure


def _map(axis, values, layers, count, top):
  shown = np.full([len(layers), count], np.nan)
  for (layer, head), value in values.items():
    shown[layers.index(layer), head] = value
  # Roots, so that one large value does not make all others alike.
  norm = colors.PowerNorm(0.5, 0, max(top, 1e-9), clip=True)
  axis.imshow(shown, cmap=figures.MAP, norm=norm, aspect="auto")
  if count <= _MOST_NUMBERS:
    for (row, column), number in np.ndenumerate(shown):
      if not np.isnan(number):
        axis.text(column, row, f"{number:.2f}", ha="center", va="center", fontsize=7,
                  color="black" if norm(number) > 0.6 else "white")
    axis.set_xticks(range(count))
  axis.set_yticks(range(len(layers)), layers, fontsize=8)
  axis.tick_params(length=0)
  axis.set_xlabel("head")


def _curves(figure, points, words, stacks):
  axes = figure.subplots(1, len(stacks), squeeze=False, sharey=True)[0]
  for stack, axis in zip(stacks, axes):
    for number, word in enumerate(words):
      for order, style in _STYLES.items():
        line = [point for point in points
                if (point.to, point.stack, point.order) == (word, stack, order)]
        if not line:
          continue
        axis.plot([100 * point.share for point in line],
                  [100 * point.cost.cost for point in line], style, marker=".",
                  color=f"C{number}", label=f"{word}, by {_LABELS[order]}",
                  linewidth=3 - 2 * number / len(words))  # Equal lines stay visible.
    # Linear up to 1%, so that both a small price and a broken model can be read.
    axis.set_yscale("symlog", linthresh=1)
    axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.grid(axis="y", linewidth=0.4)
    axis.set_title(stack, fontsize="medium")
    axis.set_xlabel("heads replaced, %")
  axes[0].set_ylabel("increase of log-perplexity, %")
  axes[0].legend(frameon=False, fontsize="small", title=(
      f"V: {points[0].cost.log_perplexity:.3f} nats per token"))
