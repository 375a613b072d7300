"""The complete checkpoints of a model's folder, and the one to read.

TensorFlow writes `model.ckpt-STEP` in this order: temporary files, the data files, the
`.index`, and the line in the file `checkpoint`. So a killed process leaves no index, or
a complete checkpoint that `checkpoint` does not name yet. By default TensorFlow resumes
from the checkpoint that `checkpoint` names, and starts at step 0 without this file.

If a checkpoint has an index but incomplete data, it was damaged after it was written,
not by a kill. Training from an older checkpoint would overwrite it. This module raises
an error instead, and leaves the choice to the user.

`check` compares the sizes of data files before training. TensorFlow compares their
checksums as it restores each variable, at no further cost.

All functions work on local and on `gs://` directories.
"""

import collections
from collections.abc import Sequence
import os
import re
from typing import Any

from absl import logging
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import model_folder
import tensorflow.compat.v1 as tf

BEST = "best"  # The subfolder with the best checkpoint, which a validation keeps.
_INDEX = re.compile(r"model\.ckpt-(\d+)\.index")


class DamagedError(checks.Error):
  """A checkpoint cannot be read; the message says why."""


class MissingError(DamagedError):
  """`checkpoint` names a missing checkpoint, and there is no other."""


def find(model_dir: str) -> list[str]:
  """Returns the checkpoints that have an index, as paths, oldest first."""
  if not tf.io.gfile.isdir(model_dir):
    return []
  matches = map(_INDEX.fullmatch, tf.io.gfile.listdir(model_dir))
  steps = sorted(int(match[1]) for match in matches if match)
  return [os.path.join(model_dir, f"model.ckpt-{step}") for step in steps]


def saved_step(path: str) -> int:
  """Returns the step in the path of a checkpoint; 0 if the path has no step."""
  match = re.search(r"model\.ckpt-(\d+)$", path)
  return int(match[1]) if match else 0


def check(path: str, checksums: bool = False) -> None:
  """Raises a `DamagedError` if a checkpoint, a path without `.index`, is incomplete.

  With `checksums` the whole checkpoint is read, and compared with its checksums.
  """
  model_folder.check_name(path, "the checkpoint")
  if not tf.io.gfile.exists(f"{path}.index"):
    raise DamagedError(f"{path}.index is not there")
  try:
    reader = tf.train.load_checkpoint(path)
  except tf.errors.OpError as error:
    raise DamagedError(f"{path}.index is damaged") from error
  shapes = reader.get_variable_to_shape_map()
  _check_size(path, shapes, reader.get_variable_to_dtype_map())
  for name in sorted(shapes) if checksums else ():
    try:
      reader.get_tensor(name)
    except tf.errors.OpError as error:
      raise DamagedError(
          f"the variable {name} in {path} is damaged") from error


def _check_size(path, shapes, dtypes):
  """Checks the total size, as only the index knows which file holds which variable."""
  needed = sum(tf.TensorShape(shapes[name]).num_elements() * dtypes[name].size
               for name in shapes)
  # The folder may hold other shardings of the same step: `-of-00002`.
  sizes = collections.Counter({"none": 0})
  for name in tf.io.gfile.glob(f"{path}.data-?????-of-?????"):
    sizes[name.rpartition("-of-")[-1]] += tf.io.gfile.stat(name).length
  size = max(sizes.values())
  if size < needed:
    raise DamagedError(
        f"the files {path}.data-* have {size:,} bytes, of {needed:,}")


def is_whole(path: str) -> bool:
  """Returns whether there is a checkpoint with all of its files."""
  try:
    check(path)
  except DamagedError:
    return False
  return True


def chosen(model_dir: str) -> str | None:
  """Finds the checkpoint to read: the one that `checkpoint` names, or else the newest.

  A copied folder may lack this file, or have one with paths of another machine.

  Returns:
    a path, which may be of a damaged checkpoint; None if there is no checkpoint.
  """
  named, _ = named_in(model_dir)
  if named and tf.train.checkpoint_exists(named):
    return named
  return max(find(model_dir), key=saved_step, default=None)


def at_steps(model_dir: str, steps: int | Sequence[int], parameter: str,
             folder: str = "--model_dir") -> list[str]:
  """Returns the paths of the checkpoints of some steps, oldest first, each once.

  The step -1 stands for `chosen`. Messages call the parameters or flags that give the
  steps and the folder `parameter` and `folder`.

  Raises:
    ValueError: there is no checkpoint, or not of each step.
  """
  saved = {saved_step(path): path for path in find(model_dir)}
  last = chosen(model_dir)
  if last is None:
    raise checks.Error(nothing_in(model_dir, folder))
  asked: list[Any] = [*steps] if isinstance(steps, (list, tuple)) else [steps]
  paths = [last if step == -1 else saved.get(step) for step in asked]
  if None in paths:
    raise checks.Error(
        f"{parameter} is {asked[0] if len(asked) == 1 else steps} but {model_dir!r} "
        f"holds {_steps_in_words([*saved])}; name one of them, or -1 for the last.")
  return sorted(set(filter(None, paths)), key=saved_step)


def _steps_in_words(steps, most=12):
  """The steps in their order, or the first and last few of many."""
  if len(steps) > most:
    steps = [*steps[:most // 2], "...", *steps[-most // 2:]]
  noun = "step" if len(steps) == 1 else "steps"
  return f"the {noun} {', '.join(map(str, steps))}" if steps else "no checkpoint"


def nothing_in(model_dir: str, folder: str = "--model_dir") -> str:
  """Says that a folder has no checkpoint; the arguments are those of `at_steps`."""
  return (f"`{checks.called(folder)}` is {model_dir!r}, where there is no checkpoint; "
          "train first, or name the folder of a trained model.")


def latest(model_dir: str) -> str | None:
  """Finds the newest complete checkpoint.

  If `checkpoint` lists a newer checkpoint but names an older one to resume from, the
  user has gone back on purpose. The function then returns the older one.

  Returns:
    a path, or None if there is no checkpoint.

  Raises:
    DamagedError: the newest checkpoint is damaged.
    MissingError: `checkpoint` names a checkpoint, but there is none.
  """
  path = newest(model_dir)
  if path is None:
    return None
  try:
    check(path)
  except DamagedError as error:
    raise DamagedError(explain_damage(path, error)) from error
  return path


def newest(model_dir: str) -> str | None:
  """The checkpoint to continue from, as in `latest`, complete or not."""
  saved = find(model_dir)
  named, listed = named_in(model_dir)
  if named and named not in saved and tf.train.checkpoint_exists(named):
    return named  # In another directory, on purpose.
  if named in saved and saved[-1] in listed:
    return named
  if not saved and named:
    raise MissingError(
        f"`checkpoint` in {model_dir} names {named}, which is not there, nor "
        "is any other checkpoint; bring it back, or remove `checkpoint` to "
        f"begin at step 0{_or_best(model_dir)}.")
  return saved[-1] if saved else None


def named_in(model_dir: str) -> tuple[str | None, list[str]]:
  """The paths in the file `checkpoint`, as (the one that it names, a list of all).

  If this folder has a checkpoint of the same name as one that the file names elsewhere,
  the folder was copied, and its own checkpoint counts.

  Returns:
    (None, []) if the file is missing or incomplete.
  """
  state = read_state(model_dir)
  if state is None:
    return None, []
  own = {os.path.basename(path): path for path in find(model_dir)}
  named, *listed = (own.get(os.path.basename(path), path) for path in (
      state.model_checkpoint_path, *state.all_model_checkpoint_paths))
  return named, listed


def read_state(model_dir: str) -> Any:
  """Returns the content of `checkpoint`; None if it is missing or incomplete."""
  try:
    return tf.train.get_checkpoint_state(model_dir)
  except ValueError as error:  # It is empty.
    logging.warning("%s", error)
    return None


def explain_damage(path: str, error: DamagedError) -> str:
  """Returns a sentence that says what is damaged and what to do."""
  model_dir, name = os.path.split(path)
  others = [os.path.basename(other) for other in find(model_dir)
            if other != path]
  older = f" to continue from {others[-1]}" if others else (
      " and remove `checkpoint` to begin at step 0")
  return (f"{name} in {model_dir} cannot be used: {error}; bring it back, or "
          f"move {name}.* away{older}{_or_best(model_dir)}. Nothing was changed.")


def _or_best(model_dir):
  """What to do to continue from the best checkpoint; "" unless there is a whole one."""
  for path in reversed(find(os.path.join(model_dir, BEST))):
    if is_whole(path):
      name = os.path.basename(path)
      return f" or, with {BEST}/{name}.* copied here, to continue from {name}"
  return ""
