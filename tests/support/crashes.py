"""Trains a tiny model in a process that tests can kill."""

import os
import pathlib
import pydoc_data.topics
import re
import time

from support import processes
import tensorflow.compat.v1 as tf

_STEP = re.compile(r"tf_loss\[([^\]]*)\]\[(\d+)\]")
_RESTORED = re.compile(r"Restoring parameters from \S*model\.ckpt-(\d+)")
# A save takes a few hundredths of a second; a start takes many seconds.
_POLL_SAVES = 0.001
_POLL_STEPS = 0.05

_FILES = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
          "learning_rate_schedules/constant_0_001.gin", "cpu.gin"]
_TINY = {
    "MIXTURE_NAME": "synth_text_lm", "utils.run.model_type": "lm",
    "d_model": 64, "d_ff": 64, "num_heads": 2, "d_kv": 32, "num_layers": 1,
    "utils.run.sequence_length": {"inputs": 1, "targets": 32},
    "utils.run.batch_size": 4, "utils.run.keep_checkpoint_max": 3,
    "utils.run.save_checkpoints_steps": 5,
}


class Training:
  """A process that trains on Python's manual, in the folder `model`."""

  def __init__(self, folder: pathlib.Path, name: str, steps: int, vocabulary: str):
    text = folder / "text.txt"
    text.write_text("\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    bindings = {
        **_TINY, "utils.run.train_steps": steps,
        "synthesizer_mtf.tasks.text.train": str(text),
        "synthesizer_mtf.tasks.vocabulary.sentencepiece_model": vocabulary}
    self.model_dir, self.log = folder / "model", folder / f"{name}.log"
    self._process = processes.Process(
        [f"--model_dir={self.model_dir}", "--verbosity=1",
         *(f"--gin_file={file}" for file in _FILES),
         *(f"--gin_param={key} = {value!r}" for key, value in bindings.items())],
        folder, os.environ, self.log, self.log)

  def wait_for_step(self):
    """Waits until the process has done a step."""
    self._wait(self.losses, _POLL_STEPS)

  def wait_for_save(self):
    """Waits until the next save is under way."""
    before = self._saves()
    # An earlier process that was killed may also have left partial files.
    self._wait(lambda: partial(self.model_dir) and self._saves() > before,
               _POLL_SAVES)

  def wait(self):
    """Waits for the end of the process; returns the exit status."""
    return self._process.wait()

  def kill(self):
    """Kills the process with SIGKILL."""
    self._process.kill()

  def losses(self):
    """Returns a dict from the steps done so far to their losses."""
    return {int(step): float(loss) for loss, step in _STEP.findall(self._text())}

  def restored(self):
    """Returns the step that the process started from; 0 without a checkpoint."""
    found = _RESTORED.search(self._text())
    return int(found[1]) if found else 0

  def _saves(self):
    return self._text().count("Saving checkpoints for")

  def _text(self):
    return self.log.read_text(errors="replace")

  def _wait(self, condition, seconds):
    until = time.monotonic() + processes.LIMIT
    while not condition():
      assert self._process.poll() is None and time.monotonic() < until, (
          self._text()[-2000:])
      time.sleep(seconds)


def partial(model_dir):
  """Returns the names of files that TensorFlow has not renamed yet."""
  names = os.listdir(model_dir) if model_dir.exists() else []
  return [name for name in names if "_temp" in name or ".tempstate" in name]


def newest(model_dir):
  """Returns the step of the newest checkpoint that is readable to the end, or 0.

  It does not use `training.checkpoints`, because tests compare its result with the
  choice of that module.
  """
  steps = [int(path.stem.rpartition("-")[-1])
           for path in model_dir.glob("model.ckpt-*.index")]
  return max((step for step in steps
              if _is_readable(str(model_dir / f"model.ckpt-{step}"))), default=0)


def _is_readable(path):
  try:
    reader = tf.train.load_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
      reader.get_tensor(name)
  except tf.errors.OpError:
    return False
  return True
