"""Times training by the command in TensorFlow, through JAX, and its step alone.

  python -m studies.jax_on_cpus --output=FOLDER -- --gin_file=dataset.gin \\
    --gin_file=models/laptop.gin --gin_file=attention/r+v.gin ...

Flags after `--` go to `synthesizer_mesh_transformer`. Three ways take turns: a training
in TensorFlow, one with jax.gin, and the exported step, which JAX runs without
TensorFlow on random ids. The table has the milliseconds of a step: the median of the
turns, the least and the most. Those of trainings are by the last `global_step/sec`.
"""

import argparse
import os
import statistics
import subprocess
import sys

from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.base import tabular

_STEPS = 301  # The Estimator tells the speed of each hundred.

# What `_alone` runs. It reads what docs/read_step.py reads.
_STEP = """
import json, sys, time
import jax
import numpy as np
folder = sys.argv[1]
with open(f"{folder}/step.json") as f:
  about = json.load(f)
with open(f"{folder}/step.jax", "rb") as f:
  step = jax.export.deserialize(bytearray(f.read()))
saved = np.load(f"{folder}/state.npz")
state = {name: jax.device_put(saved[name]) for name in about["state"]}
kept = [name for name in state if name not in about["changed"]]
def call(inputs, changing, rest):
  new = {**dict(zip(about["changed"], changing)), **dict(zip(kept, rest))}
  return step.call(*inputs, *(new[name] for name in about["state"]))
run = jax.jit(call, donate_argnums=(1,))
draw = np.random.default_rng(0)
inputs = [draw.integers(1, 100, shape).astype(dtype) if shape
          else np.asarray(saved["global_step"], dtype)
          for _, shape, dtype in about["inputs"]]
rest = [state[name] for name in kept]
changing = [state[name] for name in about["changed"]]
for i in range(120):
  if i == 20:
    jax.block_until_ready(changing)
    start = time.perf_counter()
  loss, *changing = run(inputs, changing, rest)
jax.block_until_ready(changing)
print((time.perf_counter() - start) * 10)
"""


def main(argv: list[str] | None = None) -> None:
  """Parses flags and measures."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--output", required=True, metavar="FOLDER")
  parser.add_argument("--turns", type=int, default=5)
  parser.add_argument("flags", nargs="*", help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  flags, jax = args.flags, [*args.flags, "--gin_file=jax.gin"]
  times: dict[str, list[float]] = {"TensorFlow": [], "JAX": [], "its step alone": []}
  for turn in range(args.turns):
    folder = os.path.join(args.output, str(turn))
    times["TensorFlow"].append(_training(f"{folder}/tensorflow", flags))
    times["JAX"].append(_training(f"{folder}/jax", jax))
    times["its step alone"].append(_alone(args.output, jax))
    print(tabular.markdown([
        ["", "ms", "least", "most", "ratio to TensorFlow"], *(
            [name, *(f"{f(ms):.2f}" for f in (statistics.median, min, max)),
             f"{statistics.median(ms) / statistics.median(times['TensorFlow']):.3f}"]
            for name, ms in times.items())]), flush=True)


def _training(folder, flags):
  """Trains; returns the milliseconds of a step."""
  _command(folder, [*flags, f"--gin_param=utils.run.train_steps = {_STEPS}"])
  rates = [rate for tag, _, rate in results.scalars(folder) if tag == "global_step/sec"]
  return 1000 / rates[-1]


def _alone(output, flags):
  """Runs the exported step, which the first call writes; returns milliseconds."""
  folder = os.path.join(output, "step")
  if not os.path.exists(f"{folder}/step.jax"):
    _command(os.path.join(output, "0", "jax"), [
        *flags, "--gin_file=export_step.gin",
        f"--gin_param=synthesizer_export_step.folder = '{folder}'"])
  return float(subprocess.check_output([sys.executable, "-c", _STEP, folder]))


def _command(folder, flags):
  subprocess.run([sys.executable, "-m", "synthesizer_mtf", f"--model_dir={folder}",
                  *flags], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
  main()
