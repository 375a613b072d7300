"""Draws the results of the benchmark; this module itself measures nothing."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib import ticker
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.tools.benchmark import result_tables
from synthesizer_mtf.tools.benchmark.breakdown import PARTS

_COLORS = {"ours": "C0", "authors": "C1", "stock": "C3", "floor": "C7",
           "baseline": "C4"}
_COLORS_OF_STYLE = 10  # Further rows have another marker.
_ROW = 0.28  # The height of a bar and the space below it, in inches.
_LABELS = {"ours": "synthesizer_mtf", "authors": "mesh_tensorflow's Synthesizer",
           "stock": "mesh_tensorflow", "floor": "no mixing of positions",
           "baseline": "other programs"}


def plot(results: list[dict[str, Any]], path: str) -> bool:
  """Draws bars of ratios, or for several lengths how the time grows.

  If steps were traced, a further panel shows the time of each part.

  Args:
    results: the dicts that `measuring` returns.
    path: the PNG file to write.

  Returns:
    whether there was anything to draw. If not, no file is written.
  """
  results = [{**r, "panel": result_tables.title(r["measure"], r["configuration"])}
             for r in results if "median_seconds" in r]
  measures = list(dict.fromkeys(r["panel"] for r in results))
  if not measures:
    return False
  sweep = len({r["inputs"] for r in results}) > 1
  traced = [r for r in results if "parts_seconds" in r]
  if traced and not sweep:
    measures.append("parts")
  names = list(dict.fromkeys(r["row"] for r in results))
  across = 1 if sweep else min(2, len(measures))
  down = -(-len(measures) // across)
  figure, axes = plt.subplots(
      down, across, squeeze=False, sharey=not sweep, layout="constrained",
      figsize=(backend.WIDTH, down * (4 if sweep else 0.9 + _ROW * len(names)) + 0.8))
  for axis in axes.flat[len(measures):]:
    axis.remove()
  for axis, measure in zip(axes.flat, measures):
    axis.set_title(_TITLES.get(measure, measure))
    if measure == "parts":
      _stacks(axis, traced, names)
      continue
    draw = _growth if sweep else _bars
    draw(axis, [r for r in results if r["panel"] == measure], names)
  figure.suptitle(_caption(results[0], sweep), fontsize="small")
  figure.legend(*axes[0][0].get_legend_handles_labels(),
                loc="outside right upper" if sweep else "outside lower center",
                ncols=1 if sweep else 5)
  figure.savefig(path)
  plt.close(figure)
  return True


def _caption(result, sweep):
  """Returns the sizes of the model, and the machine."""
  text = "" if sweep else "{inputs}/{targets} tokens, "
  text += "" if result["measure"] == "decode" else "batch {batch}, "
  text += ("{num_layers}+{num_layers} layers, d_model {d_model}, vocabulary "
           "{vocabulary:,}, float32 if a row does not say otherwise\n"
           "{machine[cpu]}, {machine[cores]} cores")
  return text.format(machine=result["machine"], **result["configuration"])


_TITLES = {"train": "training step", "eval": "loss alone",
           "parts": "where the time of a step goes"}


def _bars(axis, results, names):
  """Draws horizontal bars of the ratios, with whiskers at the quartiles."""
  drawn = set()
  for result in (r for r in results if "ratio" in r):
    index, family = names.index(result["row"]), result["family"]
    axis.barh(index, result["ratio"], color=_COLORS[family],
              label=None if family in drawn else _LABELS[family])
    low, high = result["ratio_quartiles"]
    axis.plot([low, high], [index, index], color="black", linewidth=2,
              label=None if drawn else "quartiles of the rounds")
    axis.annotate(f"{result['ratio']:.2f}", (max(high, result["ratio"]), index),
                  xytext=(6, 0), textcoords="offset points", va="center",
                  fontsize="small")
    drawn.add(family)
  paper = [(r["paper_ratio"], names.index(r["row"])) for r in results
           if r["measure"] == "train" and "paper_ratio" in r]
  if paper:
    axis.scatter(*zip(*paper), marker="D", s=28, color="white", zorder=3,
                 edgecolor="black", label="the paper, Table 4")
  axis.margins(x=0.14)
  axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
  axis.set_yticks(range(len(names)), names)
  axis.set_ylim(len(names) - 0.4, -0.6)
  axis.set_xlabel(f"times as fast as {results[0]['reference']}")


def _stacks(axis, results, names):
  """Draws horizontal bars of milliseconds, with a color for each part."""
  for result in results:
    index, left = names.index(result["row"]), 0
    for number, part in enumerate(PARTS):
      width = 1e3 * result["parts_seconds"][part]
      axis.barh(index, width, left=left, color=f"C{number}",
                label=part if result is results[0] else None)
      left += width
    axis.text(left, index, f" {left:.0f}", va="center", fontsize="small")
  axis.margins(x=0.12)
  axis.set_xlabel("milliseconds")
  # The legend is below the axis, because bars may be anywhere in the axis.
  axis.legend(loc="upper center", ncols=4, fontsize="x-small", columnspacing=1,
              bbox_to_anchor=(0.45, -0.42 / (_ROW * len(names))))


def _growth(axis, results, names):
  """Draws seconds over the input length, both logarithmic, with a line for each row."""
  for i, name in enumerate(names):
    points = sorted((r for r in results if r["row"] == name),
                    key=lambda r: r["inputs"])
    if not points:
      continue
    lengths = [r["inputs"] for r in points]
    line, markers = ("-", "o^v") if points[0]["family"] == "ours" else ("--", "sDP")
    color, marker = f"C{i}", markers[i // _COLORS_OF_STYLE % len(markers)]
    axis.plot(lengths, [r["median_seconds"] for r in points], color=color,
              label=name, marker=marker, linestyle=line)
    axis.fill_between(lengths, *zip(*(r["quartiles_seconds"] for r in points)),
                      color=color, alpha=0.2, linewidth=0)
  axis.set_xscale("log", base=2)
  axis.set_yscale("log")
  ticks = sorted({r["inputs"] for r in results})
  axis.set_xticks(ticks, [str(t) for t in ticks])
  axis.grid(True, which="both")
  axis.set_xlabel("input length, tokens")
  for formatted in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
    formatted(ticker.LogFormatter())  # Plain numbers.
  axis.set_ylabel("seconds (bands: quartiles of the rounds)")
