"""Trains the models of the study in PyTorch, on a processor or a GPU.

  python torch_training.py pretrain --rows=ROWS --spiece=VOCABULARY.model \\
    --output=V --steps=8000
  python torch_training.py tune --rows=ROWS --start=V --output=V_EN_DE --steps=2000
  python torch_training.py recover --rows=ROWS --v=V --r=R --output=FILE.jsonl

This file needs PyTorch, Transformers and NumPy alone. ROWS is the folder that
`studies.calibration.rows` wrote.

`pretrain` trains a T5 (4 + 4 layers, d_model 256) by span corruption, and `tune`
continues on English-German pairs. Both keep the model of the lowest validation loss in
a folder that `python -m synthesizer_mtf.tools.hugging_face import` reads; a file
`log.jsonl` in it has the losses. If they are stopped, the same command goes on from
`training.pt`.

`recover` takes V and a model that `tools/calibrate` made of it, and which `hugging_face
export` wrote: the same layers, but tables R for all self-attention. It trains, for each
number of steps and seed,

  V            V itself
  calibrated   R as it is
  annealed     R + V with random R, whose weight moves from 0.001 to 1 between 10% and
               60% of the steps (warm_start/anneal_to_r.gin), and evaluates R alone
  scratch      R with all variables newly drawn

and writes a line for each, with the log-perplexity of the validation rows before and
after.

The optimizer is Adam with steps relative to the size of a variable, as Adafactor's are,
and a rate that rises over the first 5% of the steps (at most 1,000) and falls to 0.
Products are in bfloat16.
"""

import argparse
import json
import pathlib
import shutil
import time

import numpy as np
import torch
from torch.nn import functional
import transformers
from transformers import dynamic_module_utils

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = {"d_model": 256, "d_kv": 32, "num_heads": 8, "d_ff": 1024, "num_layers": 4,
         "num_decoder_layers": 4, "dropout_rate": 0.1, "feed_forward_proj": "relu",
         "tie_word_embeddings": True, "decoder_start_token_id": 0, "pad_token_id": 0,
         "eos_token_id": 1}
STEPS = (200, 1000, 3000)
SEEDS = (1, 2, 3)


class Rows:
  """Rows of tokens on the device.

  Attributes:
    inputs: <int64>[rows, length]
    targets: <int64>[rows, length]
  """

  def __init__(self, path: pathlib.Path, split: str):
    with np.load(path) as arrays:
      self.inputs, self.targets = (
          torch.from_numpy(arrays[f"{split}_{name}"].astype(np.int64)).to(DEVICE)
          for name in ("inputs", "targets"))

  def without_rest(self) -> "Rows":
    """Leaves out rows with padding, the ends of documents, if they are few."""
    full = (self.inputs > 0).all(1)
    if full.float().mean() > 0.9:
      self.inputs, self.targets = self.inputs[full], self.targets[full]
    return self

  def __len__(self) -> int:
    return len(self.inputs)

  def take(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `inputs` and `targets` of some rows."""
    return self.inputs[index], self.targets[index]


def loss_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor,
            full: bool = False) -> torch.Tensor:
  """The mean log-perplexity of the targets that are not padding, <float32>[].

  Args:
    model: it returns logits.
    inputs: <int64>[rows, length]
    targets: <int64>[rows, length]
    full: whether no input is padding, so that a mask is not needed.
  """
  with torch.autocast(DEVICE.type, torch.bfloat16):
    logits = model(input_ids=inputs, labels=targets, use_cache=False,
                   attention_mask=None if full else (inputs > 0).long()).logits
  return functional.cross_entropy(
      logits.float().flatten(0, 1), targets.flatten(), ignore_index=0)


@torch.no_grad()
def log_perplexity(model: torch.nn.Module, rows: Rows, most: int = 1024,
                   batch: int = 128) -> float:
  """The log-perplexity of the first `most` rows, over all their tokens."""
  model.eval()
  total, count, most = torch.zeros((), device=DEVICE), 0, min(most, len(rows))
  for first in range(0, most, batch):
    index = torch.arange(first, min(first + batch, most), device=DEVICE)
    inputs, targets = rows.take(index)
    tokens = int((targets > 0).sum())
    total += loss_of(model, inputs, targets) * tokens
    count += tokens
  model.train()
  return float(total / count)


class Trainer:
  """Trains one model. On GPUs a step is a graph of kernels, on a stream of its own."""

  def __init__(self, model: torch.nn.Module, rows: Rows, steps: int, batch: int,
               rate: float, seed: int):
    """Declares the training.

    Args:
      model: on the device.
      rows: what it is trained on, in a random order.
      steps: after which the rate is 0.
      batch: rows in a step.
      rate: the highest learning rate, relative to the size of a variable.
      seed: of the order of rows, and of dropout.
    """
    self.model, self.rows, self.steps, self.rate = model, rows, steps, rate
    self.order = torch.randint(len(rows), (steps, batch),
                               generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    torch.manual_seed(seed)
    self.step = 0
    self.factor = torch.zeros((), device=DEVICE)
    self.slots = [(p, torch.zeros_like(p), torch.zeros_like(p))
                  for p in model.parameters() if p.requires_grad]
    self.scales = [p.detach().square().mean().sqrt().clamp(min=1e-3)
                   for p, _, _ in self.slots]
    self.full = bool((rows.inputs > 0).all())
    self.inputs, self.targets = rows.take(self.order[0])
    self.loss = torch.zeros((), device=DEVICE)
    self.graph = self.stream = None
    if DEVICE.type == "cuda":
      self.stream = torch.cuda.Stream()
      self._capture()

  def _update(self):
    """One step, on the rows in `inputs` and `targets`."""
    parameters, means, squares = map(list, zip(*self.slots))
    loss = loss_of(self.model, self.inputs, self.targets, self.full)
    gradients = torch.autograd.grad(loss, parameters)
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    gradients = torch._foreach_mul(gradients, 1 / norm.clamp(min=1.0))
    torch._foreach_lerp_(means, gradients, 1 - 0.9)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - 0.99)
    divisors = torch._foreach_sqrt(squares)
    torch._foreach_add_(divisors, 1e-9)
    changes = torch._foreach_div(means, divisors)
    torch._foreach_mul_(changes, [self.factor * scale for scale in self.scales])
    with torch.no_grad():
      torch._foreach_sub_(parameters, changes)
    self.loss.copy_(loss.detach())

  def _capture(self):
    """Records `_update`; the steps of the warm-up change nothing, at a rate of 0."""
    self.model.train()
    self.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.stream):
      for _ in range(3):
        self._update()
    torch.cuda.synchronize()
    for _, mean, square in self.slots:
      mean.zero_()
      square.zero_()
    graph = torch.cuda.CUDAGraph()
    try:
      with torch.cuda.graph(graph, stream=self.stream):
        self._update()
      self.graph = graph
    except RuntimeError as error:  # A part of the model waits for the GPU.
      print(f"Steps are not graphs: {error}", flush=True)
    torch.cuda.synchronize()

  def advance(self) -> None:
    """Takes one step; on a GPU it does not wait for its end."""
    if self.stream is None:
      self._advance()
      return
    with torch.cuda.stream(self.stream):
      self._advance()

  def _advance(self):
    warm = min(1000, max(1, self.steps // 20))
    bias = (1 - 0.99**(self.step + 1))**0.5 / (1 - 0.9**(self.step + 1))
    self.factor.fill_(bias * self.rate * min(
        (self.step + 1) / warm, (self.steps - self.step) / (self.steps - warm)))
    inputs, targets = self.rows.take(self.order[self.step])
    self.inputs.copy_(inputs)
    self.targets.copy_(targets)
    if self.graph is None:
      self._update()
    else:
      self.graph.replay()
    self.step += 1

  def state(self) -> dict:
    """What a later process needs to go on; the order of rows follows from the seed."""
    return {"model": self.model.state_dict(), "slots": [s[1:] for s in self.slots],
            "scales": self.scales, "step": self.step}

  def restore(self, state: dict) -> None:
    """Goes on from `state`."""
    self.model.load_state_dict(state["model"])
    for own, saved in zip(self.slots, state["slots"]):
      own[1].copy_(saved[0])
      own[2].copy_(saved[1])
    for own, saved in zip(self.scales, state["scales"]):
      own.copy_(saved)
    self.step = state["step"]


def wait() -> None:
  """Waits until the GPU, if there is one, has done all steps."""
  if DEVICE.type == "cuda":
    torch.cuda.synchronize()


def train(model: torch.nn.Module, data: pathlib.Path, output: pathlib.Path,
          args: argparse.Namespace) -> None:
  """Trains, and keeps the model of the lowest validation loss in a folder."""
  rows, held_out = Rows(data, "train").without_rest(), Rows(data, "validation")
  trainer = Trainer(model.to(DEVICE), rows, args.steps, args.batch, args.rate,
                    args.seed)
  saved, best, start = output / "training.pt", float("inf"), time.time()
  if saved.exists():
    state = torch.load(saved, map_location=DEVICE)
    trainer.restore(state["trainer"])
    best = state["best"]
  looks = max(1, args.steps // args.looks)
  while trainer.step < args.steps:
    torch.manual_seed(args.seed + trainer.step)  # Dropout, too, goes on as it would.
    model.train()
    for _ in range(min(looks, args.steps - trainer.step)):
      trainer.advance()
    wait()
    line = {"step": trainer.step, "loss": float(trainer.loss),
            "log_perplexity": log_perplexity(model, held_out, args.evaluated),
            "recall": recall(model, data.parent / "recall.npz", args.evaluated),
            "seconds": time.time() - start}
    print(json.dumps(line), flush=True)
    with (output / "log.jsonl").open("a") as log:
      log.write(json.dumps(line) + "\n")
    if line["log_perplexity"] < best:
      best = line["log_perplexity"]
      model.save_pretrained(output)
    torch.save({"trainer": trainer.state(), "best": best}, saved)


def recall(model: torch.nn.Module, path: pathlib.Path, most: int) -> dict[str, float]:
  """The log-perplexity of spans whose text does, or does not, stand in the inputs."""
  return {name: log_perplexity(model, Rows(path, name), most)
          for name in ("same", "other")}


def model_of(folder: pathlib.Path) -> tuple[type, transformers.PretrainedConfig]:
  """The class and the configuration of a folder that `hugging_face export` wrote."""
  names = json.loads((folder / "config.json").read_text())["auto_map"]
  config, model = (dynamic_module_utils.get_class_from_dynamic_module(
      names[key], str(folder)) for key in ("AutoConfig", "AutoModelForSeq2SeqLM"))
  return model, config.from_pretrained(folder)


def start_of(name: str, v: pathlib.Path, r: pathlib.Path, seed: int) -> torch.nn.Module:
  """The model that a row of `recover` starts from.

  Args:
    name: "V", "calibrated", "annealed" or "scratch".
    v: the folder of the Transformer.
    r: the folder of the model with R in its place.
    seed: of what is newly drawn.
  """
  torch.manual_seed(seed)
  if name == "V":
    return transformers.T5ForConditionalGeneration.from_pretrained(v)
  kind, config = model_of(r)
  if name == "calibrated":
    return kind.from_pretrained(r)
  if name == "scratch":
    return kind(config)
  for key in ("encoder_attention", "decoder_attention"):
    entries = getattr(config, key)
    for entry in entries if isinstance(entries, list) else [entries]:
      entry["synthesizers"].append({"name": "V"})
  model = kind(config)
  tables = kind.from_pretrained(r).state_dict()
  dots = transformers.T5ForConditionalGeneration.from_pretrained(v).state_dict()
  for key, value in model.state_dict().items():
    if "synthesizers.1." in key:  # q and k.
      value.copy_(dots[key.replace("synthesizers.1.", "")])
    elif "synthesizers.0." not in key and "alpha" not in key:
      value.copy_(tables[key])
  for parameter_name, parameter in model.named_parameters():
    if "alpha" in parameter_name:
      parameter.requires_grad_(False)
  return model


def weigh(alphas: list[torch.Tensor], share: float) -> None:
  """Gives the tables this share of the logits of an annealed model, and V the rest."""
  for part, value in enumerate((share, 1 - share)):
    logits = [alpha[..., part] for alpha in alphas]
    torch._foreach_zero_(logits)
    torch._foreach_add_(logits, float(np.log(max(value, 1e-30))))


class Run:
  """One row of `recover`.

  Attributes:
    start: "V", "calibrated", "annealed" or "scratch".
    seed: an integer.
    before: the log-perplexity before training.
  """

  def __init__(self, start: str, steps: int, seed: int, rows: Rows, held_out: Rows,
               args: argparse.Namespace):
    self.start, self.seed = start, seed
    self._steps, self._held_out, self._most = steps, held_out, args.evaluated
    self._model = start_of(start, args.v, args.r, seed).to(DEVICE)
    self._alphas = [parameter for name, parameter in self._model.named_parameters()
                    if start == "annealed" and name.endswith("alpha")]
    self._stream = None
    self._weigh(0)
    self.before = self._log_perplexity()
    self._trainer = Trainer(
        self._model, rows, steps, args.batch, args.rate, seed)
    self._stream = self._trainer.stream

  def advance(self) -> None:
    """Takes one step."""
    self._model.train()
    self._weigh(self._trainer.step)
    self._trainer.advance()

  def after(self) -> float:
    """The log-perplexity at the end."""
    self._weigh(self._steps)
    return self._log_perplexity()

  def _log_perplexity(self):
    return log_perplexity(self._model, self._held_out, self._most)

  @torch.no_grad()
  def _weigh(self, step):
    """Moves the weight of an annealed model from V to the tables."""
    if self._alphas:
      share = float(np.interp(step / self._steps, [0.1, 0.6], [0.001, 1]))
      with torch.cuda.stream(self._stream):
        weigh(self._alphas, share)


def recover(args: argparse.Namespace) -> None:
  """Trains all rows of a number of steps at the same time; writes a line for each."""
  data = args.rows / f"{args.task}.npz"
  rows, held_out = Rows(data, "train").without_rest(), Rows(data, "validation")
  done = set()
  if args.output.exists():
    done = {(line["start"], line["steps"], line["seed"])
            for line in map(json.loads, args.output.read_text().splitlines())}
  for steps in args.steps:
    began = time.time()
    runs = [Run(start, steps, seed, rows, held_out, args)
            for seed in args.seeds for start in args.starts
            if (start, steps, seed) not in done]
    for _ in range(steps):
      for run in runs:
        run.advance()
    wait()
    for run in runs:
      line = {"task": args.task, "start": run.start, "steps": steps, "seed": run.seed,
              "before": run.before, "after": run.after(),
              "seconds": round(time.time() - began, 1)}
      print(json.dumps(line), flush=True)
      with args.output.open("a") as output:
        output.write(json.dumps(line) + "\n")


def _pretrain(args):
  torch.manual_seed(args.seed)
  _copy_spiece(args.spiece, args.output)
  config = transformers.T5Config(vocab_size=args.vocabulary, **SIZES)
  train(transformers.T5ForConditionalGeneration(config),
        args.rows / "span_corruption.npz", args.output, args)


def _copy_spiece(path, folder):
  folder.mkdir(parents=True, exist_ok=True)
  shutil.copy(path, folder / "spiece.model")


def _tune(args):
  _copy_spiece(args.start / "spiece.model", args.output)
  train(transformers.T5ForConditionalGeneration.from_pretrained(args.start),
        args.rows / "libreoffice.npz", args.output, args)


def main() -> None:
  """Reads the flags and does what they say."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(required=True)
  for name, run in (("pretrain", _pretrain), ("tune", _tune), ("recover", recover)):
    command = commands.add_parser(name)
    command.set_defaults(run=run)
    add = command.add_argument
    add("--rows", type=pathlib.Path, required=True, metavar="FOLDER")
    add("--output", type=pathlib.Path, required=True)
    add("--batch", type=int, default=64, help="rows in a step (default: %(default)s)")
    add("--evaluated", type=int, default=1024, metavar="N",
        help="validation rows (default: %(default)s)")
    add("--rate", type=float, default=0.01, help="(default: %(default)s)")
    if name == "recover":
      add("--v", type=pathlib.Path, required=True, metavar="FOLDER")
      add("--r", type=pathlib.Path, required=True, metavar="FOLDER")
      add("--task", default="span_corruption", metavar="NAME")
      add("--starts", nargs="+", default=["V", "calibrated", "annealed", "scratch"])
      add("--steps", nargs="+", type=int, default=STEPS)
      add("--seeds", nargs="+", type=int, default=SEEDS)
      continue
    add("--steps", type=int, required=True)
    add("--seed", type=int, default=1)
    add("--looks", type=int, default=12, help="validations (default: %(default)s)")
    if name == "tune":
      add("--start", type=pathlib.Path, required=True, metavar="FOLDER")
    else:
      add("--spiece", type=pathlib.Path, required=True, metavar="FILE",
          help="the SentencePiece model of the rows")
      add("--vocabulary", type=int, default=4224, metavar="N",
          help="rows of the embedding (default: %(default)s)")
  args = parser.parse_args()
  if DEVICE.type == "cuda":
    torch.backends.cuda.matmul.allow_tf32 = True
  args.run(args)


if __name__ == "__main__":
  main()
