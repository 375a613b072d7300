"""Draws the attention of a trained model, and says in numbers what it does.

  python -m synthesizer_mtf.tools.plot_attention --model_dir=MODEL_DIR \\
    --output=pictures \\
    --input='The house is wonderful.' --target='Das Haus ist wunderbar.'

It writes, each as PNG and SVG: `contact_sheet`, all heads of all layers, before
training and now; `STACK_N`, each head of layer N; `histograms`, the weights before
training and now; `windows_STACK`, the weight by distance; and for mixtures `alpha`.
Attentions that do not depend on tokens, such as R, FR and Fix, need no text. The
model is the one in MODEL_DIR/operative_config.gin.

--html writes one interactive page, which needs no network. It shows a head of a
layer before and after training, its weights with their tokens, and for mixtures
alpha, also over training. With --html, --output may be missing.

--json writes one line for each head of each layer.

  python -m synthesizer_mtf.tools.plot_attention \\
    --seeds r.1.jsonl r.2.jsonl v.1.jsonl v.2.jsonl

summarizes several training runs, from the --json of each: means over the seeds of an
attention, with their standard errors.
"""

import itertools
from typing import Any

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.tools.plot_attention import course
from synthesizer_mtf.tools.plot_attention import figures
from synthesizer_mtf.tools.plot_attention import page
from synthesizer_mtf.tools.plot_attention import reader
from synthesizer_mtf.tools.plot_attention import seeds
from synthesizer_mtf.tools.plot_attention import statistics
from synthesizer_mtf.trainer.checkpoints import complete
import tensorflow.compat.v1 as tf
import tqdm

_WINDOWS = [1, 2, 4, 8, 16]

# Alpha is mentioned if it exceeds an equal share by more than this.
_LEANING = 0.01


class Analysis:
  """The attention of a checkpoint on some examples, before and after training.

  Attributes:
    attention: a dict from "initial" and "trained" to dicts from names of layers to the
      `Attention` of the example that is drawn.
    states: a dict from "initial", "uniform" and "trained" to dicts from names
      of layers to `Statistics` over all examples.
    step: the step of the checkpoint.
    initial_step: the step of the checkpoint before training; None for newly drawn
      variables.
  """

  def __init__(self, model: reader.Model, model_dir: str, path: str,
               names: list[str], drawn: int) -> None:
    """Runs the model.

    Args:
      model_dir: the folder of the checkpoints.
      path: the path of the checkpoint.
      names: the names of layers, keys of `model.layers`.
      drawn: the index of the example that is drawn.

    Raises:
      ValueError: a checkpoint is of another model, or a text is missing.
    """
    self.layers = [model.layers[name] for name in names]
    self.attention, self.states = {}, {}
    self.step, self.initial_step = complete.saved_step(path), None
    model.session.initialize()
    for initial in complete.find(model_dir):
      if complete.saved_step(initial) == 0:
        self.initial_step = 0
        model.session.restore(initial)
    self._gather("initial", model, drawn)
    model.session.restore(path)
    self._gather("trained", model, drawn)

  @property
  def initial_source(self) -> str:
    """The source of the values before training."""
    return ("new initial values" if self.initial_step is None
            else f"step {self.initial_step}")

  def _gather(self, state, model, drawn):
    """Fills `attention` and `states`."""
    names = [layer.name for layer in self.layers]
    gathered = {name: statistics.Statistics() for name in names}
    even = {name: statistics.Statistics() for name in names}
    for i in tqdm.tqdm(range(len(model.examples)), "Reading", unit=" texts"):
      attention = model.attend(names, i)
      for name, a in attention.items():
        gathered[name].add(a.weights, a.mask)
        even[name].add(statistics.uniform(a.mask), a.mask)
      if i == drawn:
        self.attention[state] = attention
    self.states.update({state: gathered, "uniform": even})

  def rows(self) -> list[dict[str, Any]]:
    """Returns a dict for each head of each layer, ready for JSON."""
    rows = []
    for layer in self.layers:
      summaries = {state: by_layer[layer.name].summary(_WINDOWS)
                   for state, by_layer in self.states.items()}
      initial, trained = (self.attention[state][layer.name]
                          for state in ("initial", "trained"))
      for head in range(len(trained.weights)):
        row = {"layer": layer.name, "head": head, "attention": layer.attention,
               "step": self.step, "initial_step": self.initial_step,
               "windows": _WINDOWS,
               "bins": np.round(statistics.BINS, 6).tolist()}
        for state, summary in summaries.items():
          # Uniform attention has one head, which stands for all.
          row[state] = {key: value[head % len(value)].tolist()
                        for key, value in summary.items()}
        if trained.alpha is not None:
          for key, attention in (("alpha", trained), ("initial_alpha", initial)):
            row[key] = dict(zip(layer.parts, attention.alpha[head].tolist()))
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], window: int) -> str:
  """Returns two tables to read: what the weights do, and which parts mixtures prefer.

  Args:
    rows: what `Analysis.rows` returns.
    window: one of the rows' windows.

  Returns:
    a string.
  """
  columns = {"entropy": "entropy", "distance": "distance", f"within {window}": "near",
             "half within": "half_mass_window", "stddev": "stddev", "max": "max",
             "0.1-0.2": "share_0.1_to_0.2", "above 0.2": "share_above_0.2"}
  lines = [["layer", "attention", "state", *columns]]
  means = seeds.heads(rows, window).groupby(["layer", "attention"], sort=False).mean(
      numeric_only=True)
  for layer, mean in means.iterrows():
    lines += [[*layer, state] + [
        f"{mean[f'{state} {key}']:.{1 if key[0] == 'h' else 3}f}"
        for key in columns.values()] for state in ("trained", "initial", "uniform")]
  tables = [lines, _leaning(rows)]
  return "\n\n".join(tabular.markdown(t) for t in tables if len(t) > 1)


def _leaning(rows):
  """Returns lines that say which part each head of a mixture weighs most."""
  lines = [["layer", "part", "alpha", "at the start", "least", "most",
            "heads that lean on it"]]
  for name, layer in itertools.groupby(rows, lambda row: row["layer"]):
    members = [*layer]
    for part in members[0].get("alpha", {}):
      alpha = [member["alpha"][part] for member in members]
      start = np.mean([member["initial_alpha"][part] for member in members])
      even = 1 / len(members[0]["alpha"])
      leaning = [str(m["head"]) for m in members
                 if m["alpha"][part] > even + _LEANING]
      lines.append([name, part] + [f"{x:.3f}" for x in (
          np.mean(alpha), start, min(alpha), max(alpha))] + [
              " ".join(leaning) or "none"])
  return lines


LEGEND = """\
Means over the heads of a layer and over all queries. entropy: of the weights of a
  query, in nats. distance: weighted mean of the tokens between query and key.
  within: the weight within this number of tokens. half within: the least number of
  tokens with half the weight. stddev, max and shares: of the weights themselves.
uniform: the same weight for all keys that the mask allows.
alpha weighs logits, and a head leans on a part whose alpha exceeds an equal
  share by 0.01. A part with small logits matters less than its alpha says."""


def draw(analysis: Analysis, folder: str, window: int) -> list[str]:
  """Writes all figures, with the borders of a window; returns their paths."""
  tf.io.gfile.makedirs(folder)
  layers, attention = analysis.layers, analysis.attention["trained"]
  written = figures.save(figures.contact_sheet(layers, {
      f"initial ({analysis.initial_source})": analysis.attention["initial"],
      f"trained (step {analysis.step})": attention}), folder, "contact_sheet")
  trained = {k: analysis.states[k] for k in ("trained", "initial")}
  written += figures.save(
      figures.histograms(layers, trained), folder, "histograms")
  for layer in tqdm.tqdm(layers, "Drawing", unit=" layers"):
    written += figures.save(figures.heads(layer, attention[layer.name]), folder,
                            layer.name.replace("/", "_"))
  for stack, members in figures.by_stack(layers).items():
    written += figures.save(figures.windows(
        members, attention, analysis.states, window), folder,
                            "windows_" + stack.replace("/", "_"))
  mixtures = [layer for layer in layers if layer.parts]
  if mixtures:
    written += figures.save(
        figures.alphas(mixtures, attention), folder, "alpha")
  return written


def _choose_layers(model, wanted):
  """Returns the keys of `model.layers` that a user asked for.

  Args:
    wanted: a list of names such as "encoder/0" or of stacks such as "encoder";
      empty for all.

  Raises:
    ValueError: a name is unknown.
  """
  for name in wanted:
    if not any(name in (layer.name, layer.stack)
               for layer in model.layers.values()):
      skipped = (f" ({', '.join(model.skipped)} cannot be drawn: Linformer has "
                 "no weights of positions)") if model.skipped else ""
      raise checks.Error(f"--layers names {name!r}, but the model has "
                         f"{', '.join(model.layers)}{skipped}; choose among them.")
  return [name for name, layer in model.layers.items()
          if not wanted or name in wanted or layer.stack in wanted]


def _examples(args):
  """Returns dicts from those of "inputs" and "targets" that are given to texts.

  Raises:
    ValueError: there are not as many targets as inputs.
  """
  texts = {"inputs": _texts(args.input, args.input_file),
           "targets": _texts(args.target, args.target_file)}
  count = max(1, *map(len, texts.values()))
  if not {len(lines) for lines in texts.values()} <= {0, count}:
    raise checks.Error(f"there are {len(texts['inputs'])} inputs but "
                       f"{len(texts['targets'])} targets; give as many of "
                       "both, or only one kind.")
  if args.example >= count or args.example < 0:
    raise checks.Error(f"--example is {args.example} but there are {count} "
                       f"examples; give 0 to {count - 1}.")
  return [{feature: lines[i] for feature, lines in texts.items() if lines}
          for i in range(count)]


def _texts(given, path):
  if not path:
    return given
  with tf.io.gfile.GFile(path) as f:
    lines = [line.rstrip("\n") for line in f]
  if not any(map(str.strip, lines)):
    raise checks.Error(f"{path!r} holds no text.")
  blank = [i for i, line in enumerate(lines) if not line.strip()]
  if blank:
    raise checks.Error(f"{path!r}, line {blank[0] + 1} is blank; give one text "
                       "per line.")
  return given + lines


def main(argv: list[str] | None = None) -> None:
  """Parses flags, draws, prints the tables and writes the JSON."""
  with arguments.command(_parser(), argv, graphs=True) as args:
    _run(args)


def _run(args):
  if args.seeds:
    _say_seeds(args)
    return
  if not args.model_dir:
    raise checks.Error("give --model_dir=FOLDER, or --seeds and files of --json.")
  if not (args.output or args.html or args.json):
    raise checks.Error("give --output=FOLDER for pictures, --html=FILE for a page, "
                       "or both.")
  examples = _examples(args)
  path, _ = trained_model.configure(args.model_dir, args)
  if args.html:
    page.check(args.html)
  model = reader.Model(examples, args.length)
  analysis = Analysis(model, args.model_dir, path,
                      _choose_layers(model, args.layers), args.example)
  rows = analysis.rows()
  print(f"{table(rows, args.window)}\n\n{LEGEND}")
  print(f"trained: step {analysis.step}; initial: {analysis.initial_source}; "
        f"{len(examples)} examples.")
  tabular.write_json(rows, args.json)
  if args.html:
    _write_page(args, model, analysis, examples[args.example])
  if args.output:
    written = draw(analysis, args.output, args.window)
    print(f"Wrote {len(written)} pictures; begin with {written[0]}.")


def _say_seeds(args):
  given = [flag for flag, value in {
      "--model_dir": args.model_dir, "--output": args.output,
      "--html": args.html}.items() if value]
  if given:
    raise checks.Error(f"--seeds takes files of --json, not {given[0]}; the files name "
                       "their models.")
  rows = seeds.read(args.seeds)
  print(seeds.markdown(rows, args.window))
  tabular.write_json(rows, args.json)


def _write_page(args, model, analysis, example):
  page.write(
      args.html, analysis.layers, analysis.attention,
      course.read(model, args.model_dir, analysis.attention["trained"]), {
          "title": f"Attention of {args.model_dir}",
          "initial": analysis.initial_source,
          "trained": f"step {analysis.step}",
          **{name: text for name, text in example.items() if text}})
  print(f"Wrote {args.html}, {tf.io.gfile.stat(args.html).length / 1e6:.1f} MB.")


def _parser():
  parser = arguments.parser("plot_attention", __doc__)
  add = parser.add_argument
  add("--model_dir", help="the folder of the checkpoints")
  add("--seeds", nargs="+", metavar="A.jsonl",
      help="the --json files of several training runs, instead of a model")
  add("--output", metavar="FOLDER", help="where to write pictures")
  add("--html", metavar="FILE", help="write an interactive page")
  add("--input", action="append", default=[], metavar="TEXT",
      help="a text for the encoder; may be repeated")
  add("--target", action="append", default=[], metavar="TEXT",
      help="a text for the decoder, or for a language model")
  add("--input_file", metavar="FILE", help="texts, one per line")
  add("--target_file", metavar="FILE", help="texts, one per line")
  add("--example", type=int, default=0, metavar="N",
      help="the text to draw; numbers are over all texts (default: %(default)s)")
  add("--length", type=arguments.positive, metavar="N",
      help="the largest number of tokens of a text, and their number without a text "
      "(default: utils.run.sequence_length)")
  add("--layers", type=lambda text: text.split(","), default=[], metavar="A,B",
      help="as encoder/0,decoder (default: all)")
  add("--window", type=int, default=4, choices=_WINDOWS,
      help="the local window that is drawn and printed (default: %(default)s)")
  trained_model.add_flags(parser)
  add("--json", metavar="FILE", help="write JSON lines")
  return parser


if __name__ == "__main__":
  main()
