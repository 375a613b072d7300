"""Draws attention weights, as the figures of arXiv:2005.00743 show them.

All figures take a list of `reader.Layer`. They also take `attention`, a dict from names
of layers to `reader.Attention`, or `states`, whose values are dicts from these names to
`Statistics` or to `reader.Attention`.
"""

import dataclasses
import os

from matplotlib import pyplot as plt
import numpy as np
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.plot_attention import reader
from synthesizer_mtf.tools.plot_attention import statistics

# With more tokens, their strings would overlap.
_MOST_LABELS = 40
_COLORS = {"trained": "C0", "initial": "C1", "uniform": "C8"}
MAP = "viridis"
_COLORS_OF_PARTS = 10  # Matplotlib's colors C0 to C9.
_FORMATS = ("png", "svg")

# From "trained", "initial" and "uniform" to a dict from layers to `Statistics`.
States = dict[str, dict[str, statistics.Statistics]]


def save(figure: plt.Figure, folder: str, name: str) -> list[str]:
  """Writes a figure as PNG and SVG; returns their paths."""
  paths = [os.path.join(folder, f"{name}.{suffix}") for suffix in _FORMATS]
  for path in paths:
    figure.savefig(path)
  plt.close(figure)
  return paths


def histograms(layers: list[reader.Layer], states: States) -> plt.Figure:
  """Draws the distribution of the weights, by layer (the paper's Figures 2 and 3)."""
  figure, axes = _grid(by_stack(layers).values(), 3, 2.2, sharey=True)
  # The highest bin that holds any weight.
  used = max(np.flatnonzero(s.histogram.sum(0)).max()
             for by_layer in states.values() for s in by_layer.values())
  right = statistics.BINS[min(used + 2, len(statistics.BINS) - 1)]
  for layer, axis in zip(layers, axes):
    for state, by_layer in states.items():
      share = by_layer[layer.name].histogram.mean(0)
      fill = state == "trained"
      axis.stairs(share, statistics.BINS, label=state, color=_COLORS[state],
                  fill=fill, alpha=.6 if fill else 1)
    axis.set(yscale="log", xlim=(0, right), xlabel="attention weight",
             ylabel="share of the weights")
    axis.set_title(_title(layer))
  _legend(figure, axes)
  figure.suptitle("Attention weights of all heads")
  return figure


def heads(layer: reader.Layer, attention: reader.Attention) -> plt.Figure:
  """Draws the weights of each head of a layer (Figures 4 and 5)."""
  count, length, _ = attention.weights.shape
  labelled = length <= _MOST_LABELS and None not in attention.tokens
  size = 0.16 * length + 1.2 if labelled else 2
  across = min(count, max(1, int(backend.WIDTH / size)))
  across = -(-count // -(-count // across))  # So that all lines are full.
  figure, axes = _grid([range(count)], across, max(size, backend.WIDTH / across))
  top = _top([attention])
  for head, axis in enumerate(axes):
    image = _draw(axis, _shown(attention, head), top)
    axis.set_title(_head_title(layer, attention, head), fontsize="small")
    if labelled:
      _label(axis, attention.tokens)
    if not head % across:
      axis.set_ylabel("query")
    if head + across >= count:
      axis.set_xlabel("key")
  _scale(figure, image, axes)
  figure.suptitle(_title(layer))
  return figure


def contact_sheet(layers: list[reader.Layer],
                  states: dict[str, dict[str, reader.Attention]]) -> plt.Figure:
  """Draws all heads of all layers, each of them small, in several states.

  Returns:
    a figure with a line for each stack, in which each state has an image: a row per
    layer, a column per head.
  """
  stacks = by_stack(layers)
  heads_of = {stack: len(next(iter(states.values()))[members[0].name].weights)
              for stack, members in stacks.items()}
  tile = (backend.WIDTH - 2) / (len(states) * max(heads_of.values()))
  heights = [tile * len(members) + 0.7 for members in stacks.values()]
  figure, axes = plt.subplots(
      len(stacks), len(states), squeeze=False, layout="constrained",
      figsize=(backend.WIDTH, sum(heights)), height_ratios=heights)
  for line, (stack, members) in zip(axes, stacks.items()):
    top = _top([attention[layer.name] for attention in states.values()
                for layer in members])
    for axis, (state, attention) in zip(line, states.items()):
      image = _tile(axis, [attention[layer.name] for layer in members], top)
      axis.set_title(f"{stack}, {state}")
      axis.set_yticklabels([])
    line[0].set_yticklabels([f"{layer.name.rpartition('/')[2]}  {layer.attention}"
                             for layer in members])
    line[0].set_ylabel("layer")
    _scale(figure, image, line)
  for axis in axes[-1]:
    axis.set_xlabel("head")
  return figure


def _tile(axis, attentions, top):
  """Draws the heads of some layers, a row per layer; returns the image."""
  tiles = [np.hstack([_framed(_shown(attention, head))
                      for head in range(len(attention.weights))])
           for attention in attentions]
  width, step = max(tile.shape[1] for tile in tiles), len(tiles[0])
  image = _draw(axis, np.vstack([
      np.pad(tile, [(0, 0), (0, width - tile.shape[1])], constant_values=np.nan)
      for tile in tiles]), top, "antialiased")
  axis.set_yticks((np.arange(len(tiles)) + .5) * step)
  axis.set_xticks((np.arange(width // step) + .5) * step, range(width // step))
  axis.tick_params(length=0)
  axis.set_frame_on(False)
  return image


def windows(layers: list[reader.Layer], attention: dict[str, reader.Attention],
            states: States, window: int) -> plt.Figure:
  """Draws the mean over the heads, and the weight by distance (Figures 6 and 7).

  Returns:
    a figure with a column per layer, four beside each other, and the borders of the
    window.
  """
  across = min(4, len(layers))
  lines = -(-len(layers) // across)
  figure, axes = plt.subplots(
      2 * lines, across, squeeze=False, layout="constrained",
      figsize=(max(5, backend.WIDTH * across / 4), 4.4 * lines))
  above, below = axes[::2].ravel(), axes[1::2].ravel()
  top = _top([_mean_over_heads(attention[layer.name]) for layer in layers])
  for layer, means, profile in zip(layers, above, below):
    mean = _mean_over_heads(attention[layer.name])
    image = _draw(means, _shown(mean, 0), top)
    means.autoscale(False)
    for shift in (-window, window):
      means.axline((0, shift), slope=1, color="white", linewidth=0.7, linestyle="--")
    means.set(title=_title(layer), xlabel="key")
    _draw_profile(profile, layer, states, window, mean)
  for axis in [*above[len(layers):], *below[len(layers):]]:
    axis.remove()
  for axis in axes[:, 0]:
    axis.set_ylabel("query" if axis in above else "mean weight")
  _scale(figure, image, [*above[:len(layers)]])
  _legend(figure, below)
  figure.suptitle(f"Mean over heads\n(dashed, grey: {window} tokens from the query)")
  return figure


def _draw_profile(axis, layer, states, window, mean):
  """Draws the mean weight by distance in each state."""
  for state, by_layer in states.items():
    statistic = by_layer[layer.name]
    axis.plot(statistic.offsets, statistic.profile.mean(0), linewidth=1.2,
              color=_COLORS[state], label=state)
  axis.axvspan(-window, window, color="black", alpha=0.08, linewidth=0)
  size = len(mean.mask)
  # In a decoder, keys never come after the query.
  axis.set_xlim(-size, size if np.triu(mean.mask, 1).any() else 1)
  axis.set_xlabel("key's position - query's")


def alphas(layers: list[reader.Layer],
           attention: dict[str, reader.Attention]) -> plt.Figure:
  """Draws the weights of the parts of mixtures, by layer and head.

  Returns:
    a figure with bars for each head, a panel for each layer.
  """
  figure, axes = _grid(by_stack(layers).values(), 3, 2.0, sharey=True)
  for layer, axis in zip(layers, axes):
    alpha = attention[layer.name].alpha
    assert alpha is not None  # The layers are mixtures.
    base = np.cumsum(alpha, 1) - alpha
    for part, height, bottom in zip(layer.parts, alpha.T, base.T):
      axis.bar(range(len(alpha)), height, bottom=bottom, color=f"C{place(part)}",
               label=part)
    axis.axhline(0.5, color="white", linewidth=0.8, linestyle=":")
    axis.set(ylim=(0, 1), xticks=range(len(alpha)), xlabel="head", ylabel="alpha")
    axis.set_title(_title(layer))
  _legend(figure, axes)
  figure.suptitle("Weights of the parts")
  return figure


def place(part: str) -> int:
  """Returns the number of a part's colour, which is the same in all figures.

  The names of the notation have the first colours. A user's own class has one of the
  other colours.
  """
  known = list(notation.SYNTHESIZING_FUNCTIONS)
  if part in known:
    return known.index(part)
  return len(known) + sum(map(ord, part)) % max(1, _COLORS_OF_PARTS - len(known))


def _grid(groups, across, height, **kwargs):
  """Returns a figure, and an axis for each member of groups, which begin new rows.

  Args:
    groups: sequences.
    across: the number of axes beside each other, if there are so many.
    height: of an axis with its labels, in inches.
    **kwargs: further arguments of `pyplot.subplots`.
  """
  columns = min(across, max(map(len, groups)))
  rows = [len(group[i:i + columns]) for group in groups
          for i in range(0, len(group), columns)]
  figure, axes = plt.subplots(
      len(rows), columns, squeeze=False, layout="constrained",
      figsize=(backend.WIDTH, height * len(rows) + 0.6), **kwargs)
  for line, count in zip(axes, rows):
    for axis in line[count:]:
      axis.remove()
  return figure, [axis for line, count in zip(axes, rows) for axis in line[:count]]


def by_stack(layers: list[reader.Layer]) -> dict[str, list[reader.Layer]]:
  """Returns the layers of each stack, by its name."""
  return layer_names.by_stack((layer.name, layer) for layer in layers)


def _legend(figure, axes):
  """Adds one legend for all axes."""
  known = {label: handle for axis in axes
           for handle, label in zip(*axis.get_legend_handles_labels())}
  figure.legend(known.values(), known.keys(), loc="outside lower center",
                ncols=len(known))


def _draw(axis, weights, top, interpolation="nearest"):
  return axis.imshow(
      weights, cmap=MAP, vmin=0, vmax=top, interpolation=interpolation)


def _scale(figure, image, axes):
  figure.colorbar(image, ax=axes, extend="max", label="attention weight")


def _title(layer):
  return f"{layer.name}: {layer.attention}"


def _head_title(layer, attention, head):
  if attention.alpha is None:
    return f"head {head}"
  parts = zip(layer.parts, attention.alpha[head])
  return f"head {head} (" + ", ".join(f"{p} {a:.2f}" for p, a in parts) + ")"


def _label(axis, tokens):
  # A dollar sign would begin a formula.
  tokens = [token.replace("$", r"\$") for token in tokens]
  axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
  axis.set_yticks(range(len(tokens)), tokens, fontsize=6)


def _shown(attention, head):
  """Returns the weights of one head, without masked keys."""
  return np.where(attention.mask, attention.weights[head], np.nan)


def _framed(matrix):
  """Returns a matrix with an empty border, which separates the tiles."""
  return np.pad(matrix, max(1, len(matrix) // 16), constant_values=np.nan)


def _mean_over_heads(attention):
  return dataclasses.replace(
      attention, weights=attention.weights.mean(0, keepdims=True))


def _top(attentions):
  """Returns the upper end of the colour scale, which few weights exceed."""
  seen = np.concatenate([a.weights[:, a.mask].ravel() for a in attentions])
  return max(np.quantile(seen, 0.995), 1e-6)
