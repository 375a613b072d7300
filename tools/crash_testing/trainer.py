"""A tiny model in training, for `crash_test.py` to kill."""

import multiprocessing
import os
import pathlib
import pydoc_data.topics
import re
import signal
import sys
import time
from typing import Any

from synthesizer_mtf import launcher
from synthesizer_mtf.tools import train_vocabulary
import tensorflow.compat.v1 as tf

_STEP = re.compile(r"tf_loss\[([^\]]*)\]\[(\d+)\]")
_RESTORED = re.compile(r"Restoring parameters from \S*model\.ckpt-(\d+)")
# A save takes a few hundredths of a second, a start many seconds.
_POLL_SAVES = 0.001
_POLL_STEPS = 0.05
# One batch, or the building of the graph, on a machine under load.
_PATIENCE_SECONDS = 600

_TINY = {
    "MIXTURE_NAME": "synth_text_lm", "utils.run.model_type": "lm",
    "d_model": 64, "d_ff": 64, "num_heads": 2, "d_kv": 32, "num_layers": 1,
    "utils.run.sequence_length": {"inputs": 1, "targets": 32},
    "utils.run.batch_size": 4,
    "utils.run.keep_checkpoint_max": 3,
}


def write_data(folder: pathlib.Path) -> dict[str, str]:
  """Writes text and a vocabulary, from Python's manual.

  Args:
    folder: a `pathlib.Path`.

  Returns:
    the gin bindings that name them, a dict.
  """
  folder.mkdir(parents=True, exist_ok=True)
  lines = "\n".join(pydoc_data.topics.topics.values()).splitlines()[:2000]
  lines = [line for line in lines if line.strip()]
  text, model = folder / "text.txt", folder / "vocabulary.model"
  text.write_text("\n".join(lines) + "\n", encoding="utf-8")
  model.write_bytes(train_vocabulary.train(
      lines, 500, model_type="bpe", character_coverage=1.))
  return {"synthesizer_mtf.tasks.vocabulary.sentencepiece_model": str(model),
          "synthesizer_mtf.tasks.text.train": str(text)}


class Training:
  """One process that trains.

  It is a fork that goes on as the command does once TensorFlow is imported,
  since the import takes most of the time until a kill.
  """

  def __init__(self, model_dir: pathlib.Path, log: pathlib.Path,
               bindings: dict[str, Any]) -> None:
    """Starts it.

    Args:
      model_dir: a `pathlib.Path`.
      log: a `pathlib.Path`, for its output.
      bindings: a dict, gin's.
    """
    self.log = log
    self._model_dir = model_dir
    gin_files = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
                 "learning_rate_schedules/constant_0_001.gin", "cpu.gin"]
    argv = ["synthesizer_mesh_transformer", f"--model_dir={model_dir}"]
    argv += [f"--gin_file={name}" for name in gin_files]
    argv += [f"--gin_param={name} = {value!r}"
             for name, value in {**_TINY, **bindings}.items()]
    log.write_text("")
    self._process = multiprocessing.get_context("fork").Process(
        target=_launch, args=(argv, str(log)), daemon=True)
    self._process.start()

  def wait_for_step(self) -> bool:
    """Waits until it has done a step; returns whether it has."""
    return self._wait(self.steps, _POLL_STEPS)

  def wait_for_save(self) -> bool:
    """Waits until the next save is under way; returns whether it is."""
    before = self._saves()
    # The kill before this process may have left partial files, too.
    return self._wait(
        lambda: partial(self._model_dir) and self._saves() > before,
        _POLL_SAVES)

  def wait_for_end(self) -> int | None:
    """Returns the exit status."""
    self._process.join(_PATIENCE_SECONDS)
    return self._process.exitcode

  def kill(self) -> None:
    """Kills it with SIGKILL."""
    self._process.kill()
    self._process.join()

  def steps(self) -> dict[int, float]:
    """Returns the steps done so far, as {step: loss}."""
    found = _STEP.findall(self.log.read_text(errors="replace"))
    return {int(step): float(loss) for loss, step in found}

  def restored(self) -> int | None:
    """Returns the step that it started from; None without a checkpoint."""
    found = _RESTORED.search(self.log.read_text(errors="replace"))
    return int(found[1]) if found else None

  def _saves(self):
    return self.log.read_text(errors="replace").count("Saving checkpoints for")

  def _wait(self, condition, seconds):
    started = time.monotonic()
    while not condition():
      late = time.monotonic() - started > _PATIENCE_SECONDS
      if late or not self._process.is_alive():
        return False
      time.sleep(seconds)
    return True


def _launch(argv, log):
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  out = os.open(log, os.O_WRONLY | os.O_APPEND)
  os.dup2(out, 1)
  os.dup2(out, 2)
  sys.argv = argv
  launcher.console_entry_point()


def partial(model_dir: pathlib.Path) -> list[str]:
  """Returns the names of what TensorFlow has not renamed yet."""
  names = os.listdir(model_dir) if model_dir.exists() else []
  return [name for name in names if "_temp" in name or ".tempstate" in name]


def complete(model_dir: pathlib.Path) -> list[int]:
  """Returns the steps of the checkpoints that can be read to the last byte.

  It does not ask `synthesizer_mtf.checkpoints`, whose choice it is to judge.
  """
  steps = [int(path.stem.rpartition("-")[-1])
           for path in model_dir.glob("model.ckpt-*.index")]
  return sorted(step for step in steps
                if _is_readable(str(model_dir / f"model.ckpt-{step}")))


def _is_readable(path):
  try:
    reader = tf.train.load_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
      reader.get_tensor(name)
  except tf.errors.OpError:
    return False
  return True


def where_killed(model_dir: pathlib.Path) -> str:
  """Tells from the files of a model directory what the process was doing."""
  names = {path.name for path in model_dir.glob("*")}
  indexed = {name[:-len(".index")] for name in names if name.endswith(".index")}
  data = {name.partition(".data-")[0] for name in names if ".data-" in name}
  if partial(model_dir):
    return "save: writing"
  if data - indexed:
    return "save: no index yet"
  state = tf.train.get_checkpoint_state(str(model_dir))
  newest = complete(model_dir)[-1:]
  if newest and (not state or not state.model_checkpoint_path.endswith(
      f"-{newest[0]}")):
    return "save: not named yet"
  return "step"
