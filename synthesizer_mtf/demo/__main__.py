"""The command `python -m synthesizer_mtf.demo`; see the package."""

import argparse
import dataclasses
import gc
import pathlib
import sys

from synthesizer_mtf.demo import data
from synthesizer_mtf.demo import report
from synthesizer_mtf.demo import stages
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import claims
from synthesizer_mtf.tools.experiments import process


def main(argv: list[str] | None = None) -> int:
  """Runs the demo; returns the exit status."""
  with arguments.command(_parser(), argv, stopped=arguments.CONTINUES) as args:
    plan = stages.Plan(args.output_dir, args.attention, stages.SCALES[args.scale])
    claims.claim(plan.folder, dataclasses.asdict(plan.scale))
    try:
      ran = _run(plan)
    except process.CommandError as error:  # The message holds many lines of a log.
      print(f"\nsynthesizer_mtf.demo: {error}", file=sys.stderr)
      return 1
    _show(plan, ran)
  return 0


def _parser():
  parser = argparse.ArgumentParser(
      prog="python -m synthesizer_mtf.demo",
      description="Pre-trains, fine-tunes, evaluates and decodes Synthesizers "
      "on text that is on every machine. Example: python -m "
      "synthesizer_mtf.demo --attention V D+V --output_dir /tmp/dense")
  parser.add_argument("--output_dir", type=pathlib.Path,
                      default=pathlib.Path("demo_output"),
                      help="the folder of all files (default: %(default)s)")
  parser.add_argument("--attention", nargs="+", default=["V", "R", "R+V"],
                      metavar="NAME", help="the attentions to compare, in the paper's "
                      "notation; the last one decodes (default: V R R+V)")
  parser.add_argument("--scale", choices=sorted(stages.SCALES), default="full",
                      help="'test' only checks that everything runs, in a few "
                      "steps (default: %(default)s)")
  return parser


def _run(plan):
  """Runs the stages that are not done; returns their number."""
  print("Text: CPython's documentation. Pairs: names in babel's CLDR tables.",
        flush=True)
  counts = data.make(plan.data)
  print("  {characters:,} characters in {paragraphs:,} paragraphs, "
        "{held_out_paragraphs} more held out\n"
        "  {pairs:,} pairs of names, {held_out_pairs} more held out\n"
        "  a SentencePiece vocabulary of {vocabulary:,}".format(**counts))
  everything = plan.stages()
  waiting = [stage for stage in everything if not stage.is_done()]
  if 0 < len(waiting) < len(everything):
    print(f"{len(everything) - len(waiting)} of {len(everything)} stages are "
          "done already.")
  for stage in waiting:
    stage.run()
  return len(waiting)


def _show(plan, ran):
  """Prints the predictions, the table, and the paths of the results."""
  figures = report.rows(plan)
  lines, picture = plan.folder / "results.jsonl", plan.folder / "loss.png"
  tabular.write_json(figures, lines)
  report.draw(plan, figures, picture)
  print(f"\nHeld-out names, translated to German by {plan.attentions[-1]}:\n")
  for question, answer in report.predictions(plan):
    print(f"  {question:<28} -> {answer}")
  print(f"\n{report.table(figures)}\n\n"
        "steps/sec: median of pre-training; other work on the machine lowers it.\n"
        "Log perplexity: of held-out text.\n"
        "BLEU and accuracy: of held-out names, after fine-tuning.\n\n"
        f"Checkpoints          {plan.folder}/*/pretrain, "
        f"{plan.folder}/*/finetune\n"
        f"Logs of commands     {plan.folder}/*/*.log\n"
        f"TensorBoard          tensorboard --logdir {plan.folder}\n"
        f"Loss curves          {picture}\n"
        f"Table as JSON lines  {lines}\n"
        f"Predictions          {plan.predictions}")
  if not ran:
    print(f"\nEverything was done before. To start again: rm -r {plan.folder}")


if __name__ == "__main__":
  gc.freeze()  # As in the launcher.
  sys.exit(main())
