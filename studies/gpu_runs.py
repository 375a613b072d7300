"""Trains exported steps of several attentions side by side, where there is a GPU.

  python gpu_runs.py --steps=FOLDER --out=FOLDER --minutes=8

`gpu_prepare.py` makes the first FOLDER. The script needs jax, numpy and jax_speed.py
beside it; it uses nothing of this package. All rows and seeds take turns, step by step:
at any moment all have seen as many texts, and the rows of a seed the same ones in the
same order, with the same initial values of variables that have one name. So the time
may end at any step.
"""

import argparse
from collections.abc import Iterator
from concurrent import futures
import json
import os
import queue
import threading
import time
from typing import Any
import zlib

import jax_speed
import numpy as np

_AHEAD = 8  # Batches that wait for the device.


class Spans:
  """Span corruption as T5 makes it, on rows of tokens.

  `about` has the numbers of gpu_prepare.py: "length" tokens make a row, of which
  "noise" are left out, in as many spans as "sentinels" has ids; "eos" ends a text.
  """

  def __init__(self, about: dict[str, Any]) -> None:
    self.length, self._noise = about["length"], about["noise"]
    self._sentinels, self._eos = np.array(about["sentinels"]), about["eos"]

  def mask(self, rows: int, random: np.random.Generator) -> np.ndarray:
    """<bool>[rows, length]: the tokens to leave out; no span comes first."""
    spans = len(self._sentinels)
    sizes = np.stack([_parts(rows, items, spans, random) for items in (
        self.length - self._noise, self._noise)], axis=2)
    return np.repeat(np.tile([False, True], rows * spans), sizes.ravel()).reshape(
        rows, self.length)

  def corrupted(self, tokens: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """Inputs and targets, <int32>[rows, length of each], of tokens [rows, length]."""
    return [self._without(tokens, left_out) for left_out in (mask, ~mask)]

  def _without(self, tokens, left_out):
    """The tokens with a sentinel for each span that is left out, and an end."""
    before = np.pad(left_out[:, :-1], [(0, 0), (1, 0)])
    first = left_out & ~before
    ids = np.where(first, self._sentinels[np.maximum(first.cumsum(1) - 1, 0)], tokens)
    kept = ids[~(left_out & before)].reshape(len(tokens), -1)
    return np.pad(kept, [(0, 0), (0, 1)], constant_values=self._eos).astype(np.int32)


def _parts(rows, items, parts, random):
  """<int>[rows, parts]: random sizes, at least 1, which add up to `items`."""
  ends = random.random((rows, items - 1)).argsort(axis=1)[:, :parts - 1]
  return np.diff(np.sort(ends + 1, axis=1), prepend=0, append=items, axis=1)


def training(tokens: np.ndarray, spans: Spans, batch: int,
             seed: int) -> Iterator[list[np.ndarray]]:
  """Yields batches without an end; each pass cuts the text at other places."""
  random = np.random.default_rng(seed)
  while True:
    start = random.integers(spans.length)
    rows = random.permutation((len(tokens) - start) // spans.length)
    for i in range(0, len(rows) - batch + 1, batch):
      at = start + rows[i:i + batch, None] * spans.length + np.arange(spans.length)
      yield spans.corrupted(tokens[at], spans.mask(batch, random))


def held_out(tokens: np.ndarray, spans: Spans, batch: int,
             number: int | None) -> list[list[np.ndarray]]:
  """The first batches, or all of them, with spans that are always the same."""
  random = np.random.default_rng(0)
  rows = tokens[:len(tokens) // spans.length * spans.length].reshape(-1, spans.length)
  return [spans.corrupted(rows[i:i + batch], spans.mask(batch, random))
          for i in range(0, len(rows) - batch + 1, batch)[:number]]


def initial(name: str, shape: list[int], dtype: str, spread: list[float],
            seed: int) -> np.ndarray:
  """A variable's first value, by its name and seed alone.

  Args:
    spread: [mean, standard deviation] of the value that the package draws.
  """
  mean, deviation = spread
  if not deviation:
    return np.full(shape, mean, dtype)
  random = np.random.default_rng([seed, zlib.crc32(name.encode())])
  return (random.standard_normal(shape, np.float32) * deviation).astype(dtype)


def _ahead(batches):
  """The batches, made in a thread while the device computes."""
  waiting: queue.Queue = queue.Queue(_AHEAD)

  def make():
    for batch in batches:
      waiting.put(batch)

  threading.Thread(target=make, daemon=True).start()
  while True:
    yield waiting.get()


class _Runs(jax_speed.Measurements):
  """All rows and seeds."""

  def run(self) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ.setdefault("XLA_FLAGS", jax_speed.FLAGS)
    import jax

    args = self._args
    with open(os.path.join(args.steps, "about.json"), encoding="utf-8") as f:
      self._about = json.load(f)
    self._spans, batch = Spans(self._about), self._about["batch"]
    texts = {split: np.load(os.path.join(args.steps, f"{split}.npy"), mmap_mode="r")
             for split in ("train", "validation")}
    self._add(part="machine", jax=jax.__version__, flags=os.environ["XLA_FLAGS"],
              card=jax.devices()[0].device_kind, cores=os.cpu_count(),
              tokens=len(texts["train"]))
    names = [n for n in self._about["rows"] if not args.only or n in args.only]
    with futures.ThreadPoolExecutor() as pool:
      self._programs = dict(zip(names, pool.map(self._compiled, names)))
    self._states = {(name, seed): self._state(name, seed)
                    for seed in args.seeds for name in names}
    self._batches = {seed: _ahead(training(texts["train"], self._spans, batch, seed))
                     for seed in args.seeds}
    self._all = held_out(texts["validation"], self._spans, batch, args.last)
    self._looked_at = self._all[:args.held_out]
    self._train()

  def _compiled(self, name):
    program = jax_speed.Program(os.path.join(self._args.steps, name))
    program.compile_loss()
    self._add(part="compiled", row=name, seconds=program.seconds)
    return program

  def _state(self, name, seed):
    import jax

    return {variable: jax.device_put(
        initial(variable, shape, dtype, self._about["initial"][variable], seed))
            for variable, shape, dtype in self._programs[name].about["state"]}

  def _inputs(self, name, batch):
    """The inputs of a program: features by their names, and 0 for the step."""
    features = dict(zip(("inputs", "targets"), batch))
    return [features[feature].reshape(shape) if shape else 0
            for feature, shape, _ in self._programs[name].about["inputs"]]

  def _train(self):
    args, losses, step = self._args, {key: [] for key in self._states}, 0
    end = jax_speed.START + args.minutes * 60
    looking = self._look(step, losses)
    while step < args.most and time.time() + looking < end:
      begin = time.time()
      for _ in range(min(args.every, args.most - step)):
        batches = {seed: next(of) for seed, of in self._batches.items()}
        for (name, seed), state in self._states.items():
          program = self._programs[name]
          program.arrays = state
          losses[name, seed].append(
              program.run(step, self._inputs(name, batches[seed])))
        step += 1
      last = self._look(step, losses)
      block = time.time() - begin
      if step == args.every:
        self._add(part="plan", seconds_of_all=block / args.every, steps=min(
            args.most, step + int((end - time.time() - last) / block * args.every)))
      looking = last + block
    self._end(step)

  def _look(self, step, losses):
    """Adds the losses since the last time; returns how long the last look will take."""
    begin = time.time()
    for (name, seed), state in self._states.items():
      trained = [float(loss) for loss in losses[name, seed]]
      losses[name, seed].clear()
      held = self._held_out(name, state, self._looked_at)
      self._add(part="look", row=name, seed=seed, step=step, held_out=np.mean(held),
                **({"loss": np.mean(trained)} if trained else {}))
    return (time.time() - begin) * len(self._all) / len(self._looked_at)

  def _held_out(self, name, state, batches):
    """The log perplexity of each batch."""
    program = self._programs[name]
    program.arrays = state
    return [float(loss) for loss in [
        program.loss(self._inputs(name, batch)) for batch in batches]]

  def _end(self, step):
    for (name, seed), state in self._states.items():
      held = [round(x, 5) for x in self._held_out(name, state, self._all)]
      self._add(part="end", row=name, seed=seed, step=step, held_out=np.mean(held),
                by_batch=held, tokens=step * self._about["batch"] * self._spans.length)
      if name in self._args.save and seed == self._args.seeds[0]:
        np.savez(os.path.join(self._args.out, f"{name}.npz"), global_step=step, **{
            variable: np.asarray(value) for variable, value in state.items()
            if "_slot_" not in variable})
    for name, program in self._programs.items():
      program.arrays = self._states[name, self._args.seeds[0]]
      batch, begin = self._inputs(name, self._all[0]), time.time()
      for loss in [program.run(step, batch) for _ in range(self._args.repeats)]:
        float(loss)
      self._add(part="time", row=name,
                seconds=(time.time() - begin) / self._args.repeats)


def main(argv: list[str] | None = None) -> None:
  """Parses flags and trains."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--steps", required=True, metavar="FOLDER")
  add("--out", required=True, metavar="FOLDER")
  add("--minutes", type=float, default=8, help="from the start to the last look")
  add("--most", type=int, default=10 ** 9, metavar="N", help="steps at most")
  add("--seeds", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 3])
  add("--only", type=lambda text: text.split(","), help="rows; default all")
  add("--save", type=lambda text: text.split(","), default=[],
      help="rows whose variables are kept, of the first seed")
  add("--every", type=int, default=100, metavar="N", help="steps between looks")
  add("--held_out", type=int, default=16, help="batches of held-out text at each look")
  add("--last", type=int, help="those of the last look; default all")
  add("--repeats", type=int, default=10, help="steps that are timed in the end")
  args = parser.parse_args(argv)
  os.makedirs(args.out, exist_ok=True)
  args.json = os.path.join(args.out, "looks.jsonl")
  _Runs(args).run()


if __name__ == "__main__":
  main()
