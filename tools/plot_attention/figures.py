"""Draws attention weights, as the figures of arXiv:2005.00743 show them.

All figures take a list of `reader.Layer`. They also take `attention`, a dict from names
of layers to `reader.Attention`, or `states`, whose values are dicts from these names to
`Statistics`.
"""

import dataclasses
import os

from matplotlib import pyplot as plt
import numpy as np
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.plot_attention import reader
from synthesizer_mtf.tools.plot_attention import statistics

# With more tokens, their strings would overlap.
_MOST_LABELS = 40
_ACROSS = 4  # The heads beside each other.
_COLORS = {"trained": "#1f77b4", "initial": "#ff7f0e", "uniform": "#7f7f7f"}
MAP = "viridis"
_COLORS_OF_PARTS = 10  # Matplotlib's colors C0 to C9.
_FORMATS = ("png", "svg")

# From "trained", "initial" and "uniform" to a dict from layers to `Statistics`.
States = dict[str, dict[str, statistics.Statistics]]


def save(figure: plt.Figure, folder: str, name: str) -> list[str]:
  """Writes a figure as PNG and SVG; returns their paths."""
  paths = [os.path.join(folder, f"{name}.{suffix}") for suffix in _FORMATS]
  for path in paths:
    figure.savefig(path, dpi=120)
  plt.close(figure)
  return paths


def histograms(layers: list[reader.Layer], states: States) -> plt.Figure:
  """Draws the distribution of the weights, by layer (the paper's Figures 2 and 3)."""
  figure, axes = _grid(by_stack(layers).values(), 6, (3.0, 2.4), sharey=True)
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
    axis.set_title(_title(layer), fontsize="medium")
  _legend(figure, axes)
  figure.suptitle("Attention weights of all heads")
  return figure


def heads(layer: reader.Layer, attention: reader.Attention) -> plt.Figure:
  """Draws the weights of each head of a layer (Figures 4 and 5)."""
  count, length, _ = attention.weights.shape
  labelled = length <= _MOST_LABELS and None not in attention.tokens
  size = max(2.6, 0.17 * length + 0.8) if labelled else 2.8
  figure, axes = _grid([range(count)], _ACROSS, (size, size))
  top = _top([attention])
  for head, axis in enumerate(axes):
    image = _draw(axis, _shown(attention, head), top)
    axis.set_title(_head_title(layer, attention, head), fontsize="small")
    if labelled:
      _label(axis, attention.tokens)
    if not head % _ACROSS:
      axis.set_ylabel("query")
    if head + _ACROSS >= count:
      axis.set_xlabel("key")
  _scale(figure, image, axes)
  figure.suptitle(_title(layer))
  return figure


def contact_sheet(layers: list[reader.Layer],
                  attention: dict[str, reader.Attention]) -> plt.Figure:
  """Draws all heads of all layers, each of them small.

  Returns:
    a figure with an image for each stack: a row per layer, a column per head.
  """
  stacks = by_stack(layers)
  sizes = [len(attention[stack[0].name].weights) for stack in stacks.values()]
  rows = max(map(len, stacks.values()))
  figure, axes = plt.subplots(
      1, len(stacks), squeeze=False, layout="constrained",
      figsize=(max(4, 1.0 * sum(sizes) + 2), max(2.5, 1.0 * rows + 1)),
      width_ratios=sizes)
  for axis, (stack, members) in zip(axes[0], stacks.items()):
    top = _top([attention[layer.name] for layer in members])
    tiles = [np.hstack([_framed(_shown(attention[layer.name], head))
                        for head in range(len(attention[layer.name].weights))])
             for layer in members]
    width = max(tile.shape[1] for tile in tiles)
    tiles = [np.pad(tile, [(0, 0), (0, width - tile.shape[1])],
                    constant_values=np.nan) for tile in tiles]
    image = _draw(axis, np.vstack(tiles), top, "antialiased")
    step = len(tiles[0])
    axis.set_yticks((np.arange(len(tiles)) + .5) * step,
                    [f"{layer.name.rpartition('/')[2]}  {layer.attention}"
                     for layer in members])
    count = width // step
    axis.set_xticks((np.arange(count) + .5) * step, range(count))
    axis.tick_params(length=0)
    axis.set(frame_on=False, title=stack, xlabel="head")
    _scale(figure, image, axis)
  axes[0][0].set_ylabel("layer")
  return figure


def windows(layers: list[reader.Layer], attention: dict[str, reader.Attention],
            states: States, window: int) -> plt.Figure:
  """Draws the mean over the heads, and the weight by distance (Figures 6 and 7).

  Returns:
    a figure with a column per layer, and the borders of the window.
  """
  figure, axes = plt.subplots(
      2, len(layers), squeeze=False, layout="constrained",
      figsize=(3.1 * len(layers) + 1.2, 5.6))
  top = _top([_mean_over_heads(attention[layer.name]) for layer in layers])
  for column, layer in enumerate(layers):
    mean = _mean_over_heads(attention[layer.name])
    above, below = axes[:, column]
    image = _draw(above, _shown(mean, 0), top)
    for shift in (-window, window):
      above.axline((0, shift), slope=1, color="white", linewidth=0.7, linestyle="--")
    above.set_title(_title(layer), fontsize="medium")
    for state, by_layer in states.items():
      gathered = by_layer[layer.name]
      below.plot(gathered.offsets, gathered.profile.mean(0), linewidth=1.2,
                 color=_COLORS[state], label=state)
    below.axvspan(-window, window, color="black", alpha=0.08, linewidth=0)
    size = len(mean.mask)
    # In a decoder, keys never come after the query.
    below.set_xlim(-size, size if np.triu(mean.mask, 1).any() else 1)
    above.set_xlabel("key")
    below.set_xlabel("key's position - query's")
  axes[0][0].set_ylabel("query")
  axes[1][0].set_ylabel("mean weight")
  _scale(figure, image, axes[0])
  _legend(figure, axes[1])
  figure.suptitle(f"Mean over heads; the borders lie {window} tokens away")
  return figure


def alphas(layers: list[reader.Layer],
           attention: dict[str, reader.Attention]) -> plt.Figure:
  """Draws the weights of the parts of mixtures, by layer and head.

  Returns:
    a figure with bars for each head, a panel for each layer.
  """
  figure, axes = _grid(by_stack(layers).values(), 6, (3.0, 2.2), sharey=True)
  for layer, axis in zip(layers, axes):
    alpha = attention[layer.name].alpha
    assert alpha is not None  # The layers are mixtures.
    base = np.cumsum(alpha, 1) - alpha
    for part, height, bottom in zip(layer.parts, alpha.T, base.T):
      axis.bar(range(len(alpha)), height, bottom=bottom, color=f"C{place(part)}",
               label=part)
    axis.axhline(0.5, color="white", linewidth=0.8, linestyle=":")
    axis.set(ylim=(0, 1), xticks=range(len(alpha)), xlabel="head", ylabel="alpha")
    axis.set_title(_title(layer), fontsize="medium")
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


def _grid(groups, across, size, **kwargs):
  """Returns a figure, and an axis for each member of groups, which begin new rows."""
  columns = min(across, max(map(len, groups)))
  rows = [len(group[i:i + columns]) for group in groups
          for i in range(0, len(group), columns)]
  figure, axes = plt.subplots(
      len(rows), columns, squeeze=False, layout="constrained",
      figsize=(size[0] * columns + 1.4, size[1] * len(rows) + 0.6), **kwargs)
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
  figure.legend(known.values(), known.keys(), loc="outside right upper",
                frameon=False)


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
