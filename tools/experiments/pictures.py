"""The pictures of tables, studies and comparisons.

Tables of the paper have our figures over the paper's; other studies have curves, and
final scores with their intervals.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import pathlib
from typing import Any

from matplotlib import ticker
import pandas as pd
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.experiments import study_report as report_lib
from synthesizer_mtf.tools.experiments import study_types

_COLUMNS = 5  # The columns of the legend.


@contextlib.contextmanager
def written(path: pathlib.Path, count: int, across: int, height: float,
            **kwargs: Any) -> Iterator[tuple[Any, Any]]:
  """Opens panels to draw in, and writes them at the end.

  Args:
    path: the path of a PNG.
    count: the number of panels.
    across: the number of panels beside each other, if there are so many.
    height: the height of a panel with its labels, in inches.
    **kwargs: further arguments of `pyplot.subplots`.

  Yields:
    the figure, and an array [count] of its axes, line by line.
  """
  backend.choose()
  from matplotlib import pyplot
  across = min(count, across)
  down = -(-count // across)
  with backend.styled():
    figure, axes = pyplot.subplots(
        down, across, figsize=(backend.WIDTH, height * down), squeeze=False,
        layout="constrained", **kwargs)
    for axis in axes.flat[count:]:
      axis.set_axis_off()
    yield figure, axes.flat[:count]
    figure.savefig(path)
    pyplot.close(figure)


def draw_table(report: report_lib.Report, path: pathlib.Path) -> None:
  """Draws a panel for each score that has figures of the paper and of ours.

  A row is a cross at its mean, with a dot for each seed and its name beside it. If our
  order is the paper's, the crosses rise from left to right.

  Args:
    report: the report of a table.
    path: the path of a PNG. Without such scores it is not written.
  """
  panels = []
  for score, figures in [*report.figures(), *report.measured()]:
    paper = {row.name: row.paper[score.title] for row in report.study.rows
             if score.title in row.paper and row.name in figures}
    if paper:
      panels.append((score.title, paper, figures))
  if not panels:
    return
  with written(path, len(panels), 2, 3) as (figure, axes):
    for axis, panel in zip(axes, panels):
      _draw_rows(axis, *panel)
    figure.suptitle(f"{report.study.title}, laptop scale, {report.settings.steps} "
                    "steps (dot: a seed; cross: their mean)")


def _draw_rows(axis, title, paper, ours):
  for name, at in paper.items():
    seeds = ours[name].dropna()
    dots = axis.plot([at] * len(seeds), seeds, "o", alpha=0.5)
    axis.plot(at, seeds.mean(), "x", markersize=9, color=dots[0].get_color())
    axis.annotate(name, (at, seeds.mean()), xytext=(6, 4), textcoords="offset points")
  axis.set(title=title, xlabel="paper", ylabel="ours")
  axis.margins(x=0.25, y=0.12)
  for scale in (axis.xaxis, axis.yaxis):
    if max(paper.values()) > 1e5:  # These are numbers of parameters.
      scale.set_major_formatter(ticker.EngFormatter(sep=""))
    scale.set_major_locator(ticker.MaxNLocator(5))
  axis.grid()


def draw_study(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
               path: pathlib.Path, seeds: Sequence[int] = ()) -> None:
  """Draws for each task the training loss, the validation score, and the final scores.

  The curve of a row is a line through the means of its seeds, in a band from the lowest
  seed to the highest. A single evaluation has no curve. `draw_scores` draws the final
  scores; `seeds` are as there.
  """
  curves = {"training_loss": "loss of training"}
  if len({step for line in lines for step, _ in line["validation"]}) > 1:
    curves["validation"] = "validation,\n{}"
  across = len(curves) + 1
  height = max(2.6, 0.2 * len(study.rows) + 1.2)
  with written(path, across * len(study.tasks), across, height) as (figure, axes):
    for task, panels in zip(study.tasks, axes.reshape(-1, across)):
      title, *score = task.drawn.title.split(", ")
      for axis, (key, label) in zip(panels, curves.items()):
        _draw(axis, study, task, lines, key)
        axis.set(title=title, xlabel="step",
                 ylabel=label.format("".join(score[-1:]) or title))
      draw_scores(panels[-1], study, task, lines, seeds)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center",
                  ncols=_COLUMNS, title="lines: means; bands: lowest to highest seed")
    figure.suptitle(study.title)


def _draw(axis, study, task, lines, key):
  highest = 0
  for number, row in enumerate(study.rows):
    seeds = pd.DataFrame({
        line["seed"]: dict(line[key]) for line in lines
        if (line["row"], line["task"]) == (row.name, task.name)}).dropna().sort_index()
    if seeds.empty:  # A score that training has not computed on its way to a best step.
      continue
    color, style = f"C{number}", "-" if number < 10 else "--"
    # Without the first steps, whose loss would flatten the curves.
    late = seeds[seeds.index > 0.05 * seeds.index.max()]
    highest = max(highest, late.to_numpy().max(initial=0))
    axis.plot(seeds.mean(axis=1), color=color, linestyle=style, label=row.name,
              marker="o" if key == "validation" else None)
    axis.fill_between(seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=color,
                      alpha=0.15, linewidth=0)
  axis.grid()
  axis.set_xlim(left=0)
  if key == "training_loss" and highest:
    axis.set_ylim(top=1.05 * highest)


def draw_scores(axis: Any, study: study_types.Study, task: study_types.Task,
                lines: Sequence[Mapping[str, Any]], seeds: Sequence[int] = ()) -> None:
  """Draws the final scores of a task: seeds, mean and interval, the best row on top.

  The rows have the order of the study while runs are missing, or if all means are
  equal; the title says so.

  Args:
    axis: an axis of matplotlib.
    task: one of its tasks, whose first score is drawn.
    lines: the lines of its runs.
    seeds: the seeds of the runs that each row is to have; empty for those of `lines`.
  """
  score, name = task.drawn, next(task.scores())[0]
  figures = report_lib.scores(lines, study, task, name)
  wanted = len(study.rows) * len(seeds) or figures.size
  done, means = int(figures.count().sum()), figures.mean()
  if done < wanted:
    caption, means = f"{done} of {wanted} runs, not ranked; ", means[::-1]
  elif means.nunique() == 1 < len(means):
    caption, means = "all equal, not ranked; ", means[::-1]
  else:
    caption, means = "", means.sort_values(ascending=not score.lower_is_better)
  numbers = {row.name: number for number, row in enumerate(study.rows)}
  figures = figures[means.index]  # From bottom to top.
  estimates = over_seeds.estimates(figures)
  for index, (row, estimate) in enumerate(estimates.iterrows()):
    draw_estimate(axis, index, figures[row].dropna(), estimate, f"C{numbers[row]}")
  axis.set_yticks(range(figures.shape[1]), figures.columns)
  better = "lower" if score.lower_is_better else "higher"
  axis.set_xlabel(f"{score.title}\n({better} is better)")
  axis.set_title(f"{caption}{_interval(estimates)}", fontsize="small")
  axis.grid(axis="x")


def draw_estimate(axis: Any, at: Any, values: pd.Series, estimate: pd.Series,
                  color: str) -> None:
  """Draws a row of dots, the values of the seeds, with their mean and interval.

  Args:
    axis: an axis of matplotlib.
    at: the row's place on the y-axis.
    values: a value for each seed.
    estimate: the row of `over_seeds.estimates` for them.
    color: that of matplotlib.
  """
  axis.plot(values, [at] * len(values), "o", color=color, alpha=0.5)
  axis.plot(estimate["mean"], at, "|", color=color, markersize=12)
  axis.plot(estimate[["low", "high"]], [at] * 2, color=color)


def _interval(estimates):
  """Returns what the bars are, and the number of seeds."""
  counts = estimates["count"]
  if not counts.any():
    return "no runs"
  number = f"n = {counts.min()}" + f" to {counts.max()}" * (counts.nunique() > 1)
  return f"{over_seeds.CONFIDENCE:.0%} interval, {number}" if (
      estimates["low"].notna().any()) else f"no interval, {number}"
