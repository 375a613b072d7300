"""The launcher is killed at random moments, and started again.

Each restart continues from the newest checkpoint that was complete when the kill
struck. The test finds it by reading all checkpoints to the last byte. A step that is
done again has the same loss.

  CRASH_KILLS=30 CRASH_SEED=0 python -m pytest -s tests/processes/test_crash_safety.py

kills it more often, and prints each kill. Through JAX, half of the kills are enough.
"""

import math
import os
import random
import re
import time

import pytest
from support import launching
from support import processes
from support import stacks
import tensorflow.compat.v1 as tf

KILLS = int(os.environ.get("CRASH_KILLS", 2))
SEED = int(os.environ.get("CRASH_SEED", 0))

# A save takes a few hundredths of a second; a start takes many seconds.
POLL_SAVES = 0.001
POLL_STEPS = 0.05
BINDINGS = [launching.ADAFACTOR, launching.ONE_STACK,
            "d_model = 64", "d_ff = 64", "d_kv = 32",
            "utils.run.keep_checkpoint_max = 3", "utils.run.save_checkpoints_steps = 5",
            "utils.run.mesh_devices = ['cpu:0']",
            "utils.run.train_model_fn = @synthesizer_mtf.train_with_seed",
            "mesh_train_dataset_fn.seed = 1", "dropout_rate = 0.1",
            "utils.get_variable_dtype.master_dtype = 'float32'"]


class Training:
  """A process that trains a launcher's model."""

  def __init__(self, launch, name, steps, mesh):
    self.log, self._model_dir = launch.folder / f"{name}.log", launch.model_dir

    def run(words, folder):
      with open(self.log, "w") as log:
        return processes.Process(
            [processes.COMMAND, "--verbosity=1", *words], log, cwd=folder)

    self.process = launch(
        bindings=[*BINDINGS, launching.STEPS.format(steps)], run=run, mesh=mesh)

  def wait_for_step(self):
    """Waits until the process has done a step."""
    self._wait(self.losses, POLL_STEPS)

  def wait_for_save(self):
    """Waits until the next save is under way."""
    before = self._saves()
    # An earlier process that was killed may also have left partial files.
    self._wait(lambda: partial(self._model_dir) and self._saves() > before, POLL_SAVES)

  def losses(self):
    """Returns a dict from the steps done so far to their losses."""
    return {int(step): float(loss) for loss, step in re.findall(
        r"tf_loss\[([^\]]*)\]\[(\d+)\]", self.text())}

  def restored(self):
    """Returns the step that the process started from; 0 without a checkpoint."""
    match = re.search(r"Restoring parameters from \S*model\.ckpt-(\d+)", self.text())
    return int(match[1]) if match else 0

  def text(self):
    return self.log.read_text(errors="replace")

  def _saves(self):
    return self.text().count("Saving checkpoints for")

  def _wait(self, condition, seconds):
    until = time.monotonic() + processes.LIMIT
    while not condition():
      assert self.process.poll() is None and time.monotonic() < until, (
          self.text()[-2000:])
      time.sleep(seconds)


def partial(model_dir):
  """Returns the names of files that TensorFlow has not renamed yet."""
  names = os.listdir(model_dir) if model_dir.exists() else []
  return [name for name in names if "_temp" in name or ".tempstate" in name]


def newest(model_dir):
  """Returns the step of the newest checkpoint that is readable to the end, or 0.

  It does not use `checkpoints.complete`, because the test compares its result with the
  choice of that module.
  """
  steps = [int(path.stem.rpartition("-")[-1])
           for path in model_dir.glob("model.ckpt-*.index")]
  return max((step for step in steps
              if is_readable(str(model_dir / f"model.ckpt-{step}"))), default=0)


def is_readable(path):
  try:
    reader = tf.train.load_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
      reader.get_tensor(name)
  except tf.errors.OpError:
    return False
  return True


def strike(training, moments):
  """Kills a training, at a step or during a save; returns the chosen moment."""
  aim = moments.choice(("step", "save", "first save"))
  if aim != "first save":  # A restart saves before its first step.
    training.wait_for_step()
  if aim != "step":
    training.wait_for_save()
  time.sleep(moments.uniform(0, 2 if aim == "step" else 0.15))
  training.process.kill()
  return aim


@pytest.mark.parametrize("mesh, kills", [
    ("cpu.gin", KILLS),
    pytest.param("jax.gin", (KILLS + 1) // 2, marks=stacks.only_new)])
def test_killed_training_resumes_from_the_newest_complete_checkpoint(
    mesh, kills, tmp_path, sentencepiece_model):
  launch, moments = launching.Launcher(tmp_path, sentencepiece_model), random.Random(
      SEED)
  last, losses = 0, {}
  for kill in range(kills):
    training = Training(launch, kill, 10_000, mesh)
    aim = strike(training, moments)
    again = check(training, last, losses)
    last = newest(launch.model_dir)
    print(f"kill {kill + 1}, {aim}: last step {max(training.losses(), default=None)}, "
          f"done again {again}, newest checkpoint {last}, "
          f"partial {partial(launch.model_dir)}")
  training = Training(launch, kills, last + 10, mesh)
  assert training.process.wait() == 0, training.text()[-3000:]
  check(training, last, losses)
  assert "Loss for final step" in training.text()
  launch.model_dir = tmp_path / "whole"
  whole = Training(launch, "whole", last + 10, mesh)
  assert whole.process.wait() == 0, whole.text()[-3000:]
  assert whole.losses() == pytest.approx(losses, abs=1e-3)


def check(training, newest, known):
  """Checks what a training did that found a checkpoint at the step `newest`.

  Adds its losses to those that are known, and returns how many were.
  """
  losses = training.losses()
  assert training.restored() == newest, training.log
  assert all(map(math.isfinite, losses.values())), training.log
  assert not losses or min(losses) == newest, training.log
  again = {step: loss for step, loss in losses.items() if step in known}
  assert again == pytest.approx({step: known[step] for step in again}, abs=1e-3)
  known.update(losses)
  return len(again)
