"""The table of figures, and the picture of the losses."""

import itertools
import pathlib
from typing import Any

import pandas as pd
from synthesizer_mtf.demo import stages
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import pictures

# (key, heading, format) of each column.
_COLUMNS = (
    ("attention", "attention", "{}"),
    ("params", "params", "{:,}"),
    ("steps_per_sec", "steps/sec", "{:.2f}"),
    ("log_perplexity", "log perplexity", "{:.3f}"),
    ("bleu", "BLEU", "{:.1f}"),
    ("accuracy", "accuracy %", "{:.1f}"),
)
_TITLES = {"pretrain": "Pre-training: span corruption of English text",
           "finetune": "Fine-tuning: names, English to German"}
_SMOOTHED = 15  # Steps of the log whose losses are averaged.


def rows(plan: stages.Plan) -> list[dict[str, Any]]:
  """Returns one dict of figures for each attention of a finished plan."""
  figures = []
  for notation in plan.attentions:
    pretrained = plan.model_dir(notation, "pretrain")
    scores = results.scores(plan.model_dir(notation, "finetune"), plan.finetuned_step)
    figures.append({
        "attention": notation,
        "params": results.num_parameters(pretrained),
        "pretrain_steps": plan.scale.pretrain_steps,
        "finetune_steps": plan.scale.finetune_steps,
        "steps_per_sec": results.steps_per_second(pretrained),
        "log_perplexity": results.log_perplexity(
            pretrained, plan.scale.pretrain_steps),
        "bleu": scores["eval/synth_text_pairs/bleu"],
        "accuracy": scores["eval/synth_text_pairs/sequence_accuracy"],
    })
  return figures


def table(figures: list[dict[str, Any]]) -> str:
  """Returns the rows as text, with the first column left-aligned, others right."""
  cells = [[heading for _, heading, _ in _COLUMNS]] + [
      ["-" if row[key] is None else form.format(row[key]) for key, _, form in _COLUMNS]
      for row in figures]
  lines = tabular.plain(cells, str.rjust)
  lines.insert(1, "-" * len(lines[0]))
  return "\n".join(lines)


def predictions(plan: stages.Plan) -> list[tuple[str, str]]:
  """Returns [(question, prediction)] of the decoded file."""
  questions, answers = (path.read_text(encoding="utf-8").splitlines()
                        for path in (plan.questions, plan.predictions))
  return list(itertools.zip_longest(questions, answers, fillvalue=""))


def draw(plan: stages.Plan, figures: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Draws the training losses, with pre-training and fine-tuning side by side.

  A cross is the log perplexity of held-out text; the legend has held-out names' BLEU.
  `figures` are what `rows` returns, a row for each attention of the plan.
  """
  with pictures.written(path, 2, 2, 3.6) as (_, panels):
    for panel, name in zip(panels, ("pretrain", "finetune")):
      for number, row in enumerate(figures):
        notation = row["attention"]
        curve = results.losses(plan.model_dir(notation, name).with_suffix(".log"))
        losses = pd.Series(dict(curve))
        smoothed = losses.rolling(_SMOOTHED, min_periods=1).mean()
        label = notation
        if name == "finetune":
          label += f", BLEU of held-out names {row['bleu']:.1f}"
        panel.plot(losses, color=f"C{number}", linewidth=.6, alpha=.3)
        panel.plot(smoothed, color=f"C{number}", label=label)
        if name == "pretrain":
          panel.plot(losses.index[-1], row["log_perplexity"], "x",
                     color=f"C{number}", markersize=8, markeredgewidth=2)
      panel.set(title=_TITLES[name], xlabel="step", ylabel="training loss, mean "
                f"over positions\n(thick: mean of {_SMOOTHED} steps)")
      panel.grid()
      panel.legend()
    panels[0].legend(title="cross: log perplexity of held-out text", alignment="left")
