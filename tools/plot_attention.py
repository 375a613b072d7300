"""Draws the attention of a trained model, and says in numbers what it does.

  python -m synthesizer_mtf.tools.plot_attention --model_dir=MODEL_DIR \\
    --output=pictures \\
    --input='The house is wonderful.' --target='Das Haus ist wunderbar.'

It writes, each as PNG and SVG: `contact_sheet`, all heads of all layers;
`STACK_N`, each head of layer N; `histograms`, the weights at initialization
and now; `windows_STACK`, the weight by distance; and for mixtures `alpha`.
Attention that does not look at tokens, as R, FR and Fix, needs no text. The
model is that of MODEL_DIR/operative_config.gin.

--html writes one page to look around in, which needs no network: a head of a
layer before and after training, its weights with their tokens, and for mixtures
alpha, also over training. Then --output may be missing.

--json writes one line for each head of each layer.

  python -m synthesizer_mtf.tools.plot_attention \\
    --seeds r.1.jsonl r.2.jsonl v.1.jsonl v.2.jsonl

says what trainings have in common, from the --json of each: means over the seeds of an
attention, with their standard errors.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.command import messages
from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools import arguments
from synthesizer_mtf.tools import trained_model
from synthesizer_mtf.tools.attention_plots import course
from synthesizer_mtf.tools.attention_plots import figures
from synthesizer_mtf.tools.attention_plots import page
from synthesizer_mtf.tools.attention_plots import reader
from synthesizer_mtf.tools.attention_plots import seeds
from synthesizer_mtf.tools.attention_plots import statistics
import tensorflow.compat.v1 as tf
import tqdm

_WINDOWS = [1, 2, 4, 8, 16]

# Alpha is mentioned if it exceeds an equal share by more than this.
_LEANING = 0.01


class Analysis:
  """The attention of a checkpoint on some examples, before and after training.

  Attributes:
    layers: a list of `reader.Layer`.
    attention: a dict from names of layers to the `Attention` of the example that is
      drawn.
    initial: the same dict before training.
    initial_alpha: a dict from names of layers to <float32>[heads, parts] or None.
    states: a dict from "initial", "trained" and "uniform" to dicts from names
      of layers to `Statistics` over all examples.
    step: the step of the checkpoint.
    initial_step: the step of the checkpoint before training; None for newly drawn
      variables.
  """

  def __init__(self, model: reader.Model, model_dir: str, names: list[str],
               step: int | None = None, drawn: int = 0,
               progress: Callable[[Iterable], Iterable] = iter) -> None:
    """Runs the model.

    Args:
      model: a `reader.Model`.
      model_dir: the folder of the checkpoints.
      names: the names of layers, keys of `model.layers`.
      step: the step of the checkpoint; the last step if None.
      drawn: the index of the example that is drawn.
      progress: a function that wraps the iterable of examples.

    Raises:
      ValueError: a checkpoint or a text is missing.
    """
    self.layers = [model.layers[name] for name in names]
    path, self.step = trained_model.find_checkpoint(model_dir, step)
    self.states = {}
    try:
      initial, self.initial_step = trained_model.find_checkpoint(
          model_dir, 0)
    except ValueError:
      initial = self.initial_step = None
    if initial:
      model.restore(initial)
    else:
      model.initialize()
    self.initial = self._gather("initial", model, names, drawn, progress)
    self.initial_alpha = {name: a.alpha for name, a in self.initial.items()}
    model.restore(path)
    self.attention = self._gather("trained", model, names, drawn, progress)

  @property
  def initial_source(self) -> str:
    """The source of the values before training."""
    return ("new initial values" if self.initial_step is None
            else f"step {self.initial_step}")

  def _gather(self, state, model, names, drawn, progress):
    """Fills `states`; returns the `Attention` of the example that is drawn."""
    gathered = {name: statistics.Statistics() for name in names}
    even = {name: statistics.Statistics() for name in names}
    for i in progress(range(len(model.examples))):
      attention = model.attend(names, i)
      for name, a in attention.items():
        gathered[name].add(a.weights, a.visible)
        even[name].add(statistics.uniform(a.visible), a.visible)
      if i == drawn:
        kept = attention
    self.states.update({state: gathered, "uniform": even})
    return kept

  def rows(self) -> list[dict[str, Any]]:
    """Returns a dict for each head of each layer, ready for JSON."""
    rows = []
    for layer in self.layers:
      summaries = {state: by_layer[layer.name].summary(_WINDOWS)
                   for state, by_layer in self.states.items()}
      alpha = self.attention[layer.name].alpha
      for head in range(len(self.attention[layer.name].weights)):
        row = {"layer": layer.name, "head": head, "attention": layer.attention,
               "step": self.step, "initial_step": self.initial_step,
               "windows": _WINDOWS,
               "bins": np.round(statistics.BINS, 6).tolist()}
        for state, summary in summaries.items():
          row[state] = {key: np.broadcast_to(value, (
              max(len(value), head + 1),) + value.shape[1:])[head].tolist()
                        for key, value in summary.items()}
        if alpha is not None:
          row["alpha"] = dict(zip(layer.parts, map(float, alpha[head])))
          row["initial_alpha"] = dict(zip(
              layer.parts, map(float, self.initial_alpha[layer.name][head])))
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
  place = rows[0]["windows"].index(window)

  def mean(members, state, key):
    values = [m[state][key] for m in members]
    return np.mean([v[place] for v in values] if key == "window_mass" else values)

  lines = [["layer", "attention", "state", "entropy", "distance",
            f"within {window}", "half within", "stddev", "max", "0.1-0.2",
            "above 0.2"]]
  keys = ("entropy", "distance", "window_mass", "half_mass_window", "stddev",
          "max", "share_0.1_to_0.2", "share_above_0.2")
  layers = {}
  for row in rows:
    layers.setdefault(row["layer"], []).append(row)
  for name, members in layers.items():
    for state in ("trained", "initial", "uniform"):
      lines.append([name, members[0]["attention"], state] + [
          f"{mean(members, state, key):.{1 if key[0] == 'h' else 3}f}"
          for key in keys])
  tables = [lines, _leaning(layers)]
  return "\n\n".join(tabular.markdown(t) for t in tables if len(t) > 1)


def _leaning(layers):
  """Returns lines that say which part each head of a mixture weighs most."""
  lines = [["layer", "part", "alpha", "at the start", "least", "most",
            "heads that lean on it"]]
  for name, members in layers.items():
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
Means over the heads of a layer, over all queries. entropy: of the weights of a
  query, in nats. distance: tokens between query and key, weighted. within: the
  weight that lies within so many tokens. half within: the least such number
  that holds half the weight. stddev, max and shares: of the weights themselves.
uniform: the same weight for all keys that may be seen.
alpha weighs logits, and a head leans on a part whose alpha exceeds an equal
  share by 0.01. A part with small logits matters less than its alpha says."""


def draw(analysis: Analysis, folder: str, window: int) -> list[str]:
  """Writes all figures.

  Args:
    analysis: an `Analysis`.
    folder: the folder to write to, which is made if it is missing.
    window: an integer; the border of this window is drawn.

  Returns:
    the paths.
  """
  tf.io.gfile.makedirs(folder)
  layers, attention = analysis.layers, analysis.attention
  written = figures.save(
      figures.contact_sheet(layers, attention), folder, "contact_sheet")
  trained = {k: analysis.states[k] for k in ("trained", "initial")}
  written += figures.save(
      figures.histograms(layers, trained), folder, "histograms")
  for layer in tqdm.tqdm(layers, "Drawing", unit=" layers"):
    written += figures.save(figures.heads(layer, attention[layer.name]), folder,
                            layer.name.replace("/", "_"))
  for stack in dict.fromkeys(layer.stack for layer in layers):
    members = [layer for layer in layers if layer.stack == stack]
    written += figures.save(figures.windows(
        members, attention, analysis.states, window), folder,
                            "windows_" + stack.replace("/", "_"))
  mixtures = [layer for layer in layers if layer.parts]
  if mixtures:
    written += figures.save(
        figures.alphas(mixtures, attention), folder, "alpha")
  return written


def choose_layers(model: reader.Model, wanted: list[str]) -> list[str]:
  """Returns the names of the layers that a user asked for.

  Args:
    model: a `reader.Model`.
    wanted: a list of names such as "encoder/0" or of stacks such as "encoder";
      empty for all.

  Returns:
    a list of keys of `model.layers`.

  Raises:
    ValueError: a name is unknown.
  """
  known = list(model.layers)
  for name in wanted:
    if not any(name in (layer.name, layer.stack)
               for layer in model.layers.values()):
      skipped = (f" ({', '.join(model.skipped)} cannot be drawn: Linformer has "
                 "no weights of positions)") if model.skipped else ""
      raise checks.Error(f"--layers names {name!r}, but the model has "
                         f"{', '.join(known)}{skipped}; choose among them.")
  return [name for name, layer in model.layers.items()
          if not wanted or name in wanted or layer.stack in wanted]


def _examples(args):
  """Returns dicts from "inputs" and "targets" to texts.

  Raises:
    ValueError: there are not as many targets as inputs.
  """
  texts = {"inputs": _texts(args.input, args.input_file),
           "targets": _texts(args.target, args.target_file)}
  count = max(1, *map(len, texts.values()))
  for feature, lines in texts.items():
    if lines and len(lines) != count:
      raise checks.Error(f"there are {len(texts['inputs'])} inputs but "
                         f"{len(texts['targets'])} targets; give as many of "
                         "both, or only one kind.")
    if not lines:
      texts[feature] = [None] * count
  if args.example >= count or args.example < 0:
    raise checks.Error(f"--example is {args.example} but there are {count} "
                       f"examples; give 0 to {count - 1}.")
  return [dict(zip(texts, pair)) for pair in zip(*texts.values())]


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
  args = _parser().parse_args(argv)
  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.ERROR)
  with messages.ending("plot_attention"):
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
  trained_model.configure(args.model_dir, args)
  if args.html:
    page.check(args.html)
  model = reader.Model(examples, args.length)
  names = choose_layers(model, args.layers)
  analysis = Analysis(
      model, args.model_dir, names, args.step, args.example,
      lambda items: tqdm.tqdm(items, "Reading", unit=" texts"))
  rows = analysis.rows()
  print(table(rows, args.window))
  print()
  print(LEGEND)
  print(f"trained: step {analysis.step}; initial: {analysis.initial_source}; "
        f"{len(examples)} examples.")
  if args.json:
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
    raise checks.Error(f"--seeds takes files of --json, not {given[0]}; the files say "
                       "themselves what they are of.")
  rows = seeds.read(args.seeds)
  print(seeds.markdown(rows, args.window))
  if args.json:
    tabular.write_json(rows, args.json)


def _write_page(args, model, analysis, example):
  courses = course.read(
      model, args.model_dir, analysis.attention,
      lambda items: tqdm.tqdm(items, "Reading", unit=" checkpoints"))
  page.write(args.html, analysis.layers, {
      "initial": analysis.initial, "trained": analysis.attention}, courses, {
          "title": f"Attention of {args.model_dir}",
          "initial": analysis.initial_source,
          "trained": f"step {analysis.step}",
          **{name: text for name, text in example.items() if text}})
  print(f"Wrote {args.html}, {tf.io.gfile.stat(args.html).length / 1e6:.1f} MB.")


def _parser():
  parser = argparse.ArgumentParser(
      prog="plot_attention", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--model_dir", help="the folder of the checkpoints")
  add("--seeds", nargs="+", metavar="A.jsonl",
      help="files of --json of several trainings, instead of a model")
  add("--output", metavar="FOLDER", help="where to write pictures")
  add("--html", metavar="FILE", help="write a page to look around in")
  add("--input", action="append", default=[], metavar="TEXT",
      help="a text for the encoder; may be repeated")
  add("--target", action="append", default=[], metavar="TEXT",
      help="a text for the decoder, or for a language model")
  add("--input_file", metavar="FILE", help="texts, one per line")
  add("--target_file", metavar="FILE", help="texts, one per line")
  add("--example", type=int, default=0, metavar="N",
      help="which text is drawn; numbers are over all (default: %(default)s)")
  add("--length", type=arguments.positive, metavar="N",
      help="the most tokens of a text, and how many there are without text "
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
