"""The history of a model's folder: which checkpoints led to the newest.

Whoever goes back to an older checkpoint leaves later ones behind. `prepare` writes down
which, before each training.
"""

import json
import os

from absl import logging
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder

_LEFT = "left_checkpoints.json"  # Steps of this folder, in a list.


def branch(model_dir: str) -> list[str]:
  """Returns the checkpoints that led to the one to continue from, oldest first.

  Raises:
    MissingError: as in `complete.latest`.
  """
  end = complete.newest(model_dir)
  if end is None:
    return []
  left, last = _left(model_dir), complete.saved_step(end)
  steps = {path: complete.saved_step(path) for path in complete.find(model_dir)}
  return [*(path for path, step in steps.items()
            if step < last and step not in left), end]


def prepare(model_dir: str) -> str | None:
  """Makes a model directory ready for training.

  Only the chief process may call it, after `check_folder`. It removes temporary files
  of a killed process, and makes `checkpoint` name the newest complete checkpoint. It
  neither removes nor changes checkpoints.

  Returns:
    the result of `complete.latest`.

  Raises:
    ValueError: the directory is not writable, or as in `complete.latest`.
  """
  model_folder.check_writable(model_dir)
  newest = complete.latest(model_dir)
  model_folder.remove_partial(model_dir)
  if newest:
    _leave(model_dir, newest)
  state = complete.read_state(model_dir)
  if newest and (not state or state.model_checkpoint_path != newest):
    named, listed = complete.named_in(model_dir)
    if named != newest:
      logging.warning(
          "`checkpoint` in %s does not name the newest complete checkpoint, as happens "
          "when a process is killed, or a folder is copied: training continues from "
          "%s. (To go back to an older one, move the newer ones away.)", model_dir,
          newest)
    others = [path for path in listed
              if path in complete.find(model_dir) and path != newest]
    model_folder.write_state(model_dir, [*map(os.path.basename, [*others, newest])])
  return newest


def will_save(model_dir: str, step: int) -> None:
  """Declares that a checkpoint of a step takes the place of one that was left."""
  before = _left(model_dir)
  _write_left(model_dir, before, before - {step})


def _left(model_dir):
  """The steps of the checkpoints that were left, as a set."""
  return model_folder.read_record(
      os.path.join(model_dir, _LEFT), set, "it, and every checkpoint counts") or set()


def _leave(model_dir, newest):
  """Writes down which checkpoints do not lead to the one to continue from."""
  steps = set(map(complete.saved_step, complete.find(model_dir)))
  end, before = complete.saved_step(newest), _left(model_dir)
  # Whoever continues from one of them has gone forth again.
  left = {step for step in before if step > end} if end in before else before
  _write_left(model_dir, before, left & steps | {step for step in steps if step > end})


def _write_left(model_dir, before, left):
  if left != before:
    model_folder.write_whole(os.path.join(model_dir, _LEFT), json.dumps(sorted(left)))
