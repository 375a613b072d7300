"""Draws what each head is worth, and the curve over the share of replaced heads."""

from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np
from scipy import stats
from studies.calibration import heads as heads_module
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.tools.base import over_seeds

_STYLES = {"cost": "-", "divergence": ":", "trained": "--"}
_LABELS = {"cost": "cost", "divergence": "divergence", "trained": "trained weight"}
_MOST_NUMBERS = 8  # With more heads in a row, their numbers would overlap.
_PALE = 0.25  # The opacity of a cost that is not significant.
# An interval is so many standard errors wide on each side.
_ERRORS = stats.norm.ppf((1 + over_seeds.CONFIDENCE) / 2)


def draw(heads: Sequence[heads_module.Head], points: Sequence[heads_module.Point],
         words: Sequence[str]) -> plt.Figure:
  """Draws a map of the heads for each figure of the table, and the curves below.

  Costs whose 95% interval holds 0 are pale, and the curves have these intervals.

  Args:
    heads: what `heads.measure` returns.
    points: what `heads.curve` returns.
    words: the words of --to.
  """
  layers = list(dict.fromkeys(head.layer for head in heads))
  stacks = list(dict.fromkeys(point.stack for point in points))
  lines = -(-(1 + len(words)) // 3)
  sizes = lines * (0.24 * len(layers) + 1.0), 3.6
  figure = plt.figure(layout="constrained", figsize=(backend.WIDTH, sum(sizes)))
  above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=sizes).flat
  axes = above.subplots(lines, min(3, 1 + len(words)), squeeze=False)
  first, *others = axes.flat
  _map(first, {(head.layer, head.head): (head.divergence, True) for head in heads},
       layers, "nats", max(head.divergence for head in heads))
  first.set(title="divergence from the mean", ylabel="layer")
  # One scale for all words.
  top = 100 * max(cost.cost for head in heads for cost in head.costs.values())
  for axis, word in zip(others, words):
    costs = {(head.layer, head.head): head.costs[word] for head in heads
             if word in head.costs}
    _map(axis, {place: (100 * cost.cost, abs(cost.cost) > _ERRORS * cost.error)
                for place, cost in costs.items()}, layers, "%", top)
    axis.set_title(f"cost of {word} in a head alone")
    axis.set_yticklabels([])
  for axis in others[len(words):]:
    axis.remove()
  _curves(below, points, words, stacks)
  return figure


def _map(axis, values, layers, unit, top):
  """Draws values, pale where they are not significant, with their scale.

  Args:
    values: a dict from (layer, head) to the value and whether it is significant.
    unit: the unit of the values.
    top: the upper end of the scale.
  """
  count = 1 + max(head for _, head in values)
  shown, opacity = np.full([2, len(layers), count], np.nan)
  for (layer, head), (value, is_significant) in values.items():
    shown[layers.index(layer), head] = value
    opacity[layers.index(layer), head] = 1 if is_significant else _PALE
  # Roots, so that one large value does not make all others alike.
  norm = colors.PowerNorm(0.5, 0, max(top, 1e-9), clip=True)
  image = axis.imshow(shown, norm=norm, aspect="auto", alpha=np.nan_to_num(opacity))
  if count <= _MOST_NUMBERS:
    for (row, column), number in np.ndenumerate(shown):
      if opacity[row, column] == 1:
        text = f"{number:.0f}" if number >= 10 else f"{number:.2f}".removeprefix("0")
        axis.text(column, row, text, ha="center", va="center", fontsize="x-small",
                  color="black" if norm(number) > 0.6 else "white")
    axis.set_xticks(range(count))
  axis.set_yticks(range(len(layers)), layers, fontsize="small")
  axis.tick_params(length=0)
  axis.set_xlabel("head")
  bar = axis.figure.colorbar(image, ax=axis, label=unit, ticks=ticker.MaxNLocator(3))
  bar.solids.set_alpha(1)


def _curves(figure, points, words, stacks):
  axes = figure.subplots(1, len(stacks), squeeze=False, sharey=True)[0]
  for stack, axis in zip(stacks, axes):
    for number, word in enumerate(words):
      for order, style in _STYLES.items():
        line = [point for point in points
                if (point.to, point.stack, point.order) == (word, stack, order)]
        if line:
          _curve(axis, line, style, f"C{number}", f"{word}, by {_LABELS[order]}",
                 3 - 2 * number / len(words))  # Equal lines stay visible.
    # Linear up to 1%, so that both a small price and a broken model can be read.
    axis.set_yscale("symlog", linthresh=1)
    axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.grid(axis="y")
    axis.set_title(stack)
    axis.set_xlabel("heads replaced, %")
  axes[0].set_ylabel("increase of log-perplexity, %")
  figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center",
                ncols=4, title=(
      f"V: {points[0].cost.log_perplexity:.3f} nats per token; bands: "
      f"{over_seeds.CONFIDENCE:.0%} intervals; pale cells: theirs holds 0"))


def _curve(axis, line, style, color, label, width):
  """Draws the points of a word, a stack and an order, with their intervals."""
  shares = [100 * point.share for point in line]
  costs = np.array([100 * point.cost.cost for point in line])
  halves = np.array([100 * _ERRORS * point.cost.error for point in line])
  axis.plot(shares, costs, style, marker=".", color=color, label=label,
            linewidth=width)
  axis.fill_between(shares, costs - halves, costs + halves, color=color, alpha=.15,
                    linewidth=0)
