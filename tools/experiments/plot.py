"""Draws a reproduced table: our figure over the paper's figure, row by row."""

import pathlib

from matplotlib import ticker
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import reports


def plot(report: reports.Report, path: pathlib.Path) -> None:
  """Draws a panel for each column that has figures of the paper and of ours.

  A row is a cross at its mean, with a dot for each seed and its name beside it. If our
  order is the paper's, the crosses rise from left to right.

  Args:
    report: a `reports.Report`.
    path: the path of a PNG. Without such columns it is not written.
  """
  panels = {}
  for column in report.columns():
    paper, ours = report.values(column)
    both = paper.notna() & ours.notna().any(axis=1)
    if both.any():
      panels[column.title] = paper[both], ours[both]
  if not panels:
    return
  with pictures.written(path, len(panels), 4, (4.2, 3.8), dpi=110) as (figure, axes):
    for axis, (title, values) in zip(axes, panels.items()):
      _draw(axis, title, *values)
    figure.suptitle(f"Table {report.table.number}: {report.table.title}, laptop "
                    f"scale, {report.settings.steps} steps")


def _draw(axis, title, paper, ours):
  for (name, at), mean in zip(paper.items(), ours.mean(axis=1)):
    seeds = ours.loc[name]
    dots = axis.plot([at] * len(seeds), seeds, "o", markersize=4, alpha=0.5)
    axis.plot(at, mean, "x", markersize=9, color=dots[0].get_color())
    axis.annotate(name, (at, mean), xytext=(6, 4), textcoords="offset points",
                  fontsize=9)
  axis.set(title=title, xlabel="paper", ylabel="ours")
  axis.margins(x=0.25, y=0.12)
  for scale in (axis.xaxis, axis.yaxis):
    if paper.max() > 1e5:  # These are numbers of parameters.
      scale.set_major_formatter(ticker.EngFormatter(sep=""))
    scale.set_major_locator(ticker.MaxNLocator(5))
  axis.grid(alpha=0.3)
