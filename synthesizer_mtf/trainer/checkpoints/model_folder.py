"""The folder of a model: whether it can be written, and files written as a whole."""

from collections.abc import Callable
from collections.abc import Sequence
import json
import os
import re
from typing import Any

from absl import logging
from synthesizer_mtf import checks
import tensorflow.compat.v1 as tf

# Files that TensorFlow writes and then renames.
_PARTIAL = re.compile(
    r"model\.ckpt-\d+_temp(_[0-9a-f]{32})?|.+\.tmp[0-9a-f]{32}"
    r"|.+\.tempstate\d+|(checkpoint|\w+\.json)\.unfinished")

_ROOM = 1 << 14  # Bytes; more than the events of an evaluation.


def check_name(path: str, what: str | None = None) -> None:
  """Raises a ValueError for a folder or checkpoint that TensorFlow takes for a pattern.

  It would train there, but find no checkpoint. The message calls the path `what`, by
  default the model's folder.
  """
  what = what or f"`{checks.called('--model_dir')}`"
  if odd := re.search(r"[*?\[\\]", str(path)):
    raise checks.Error(
        f"{what} is {path!r}, but TensorFlow takes {odd[0]} for a part of a pattern, "
        "and finds no checkpoints there; choose another name, and rename the folder if "
        "it exists.")


def check_folder(model_dir: str) -> None:
  """Makes a model directory; raises a ValueError if it cannot be one."""
  check_name(model_dir)
  if tf.io.gfile.exists(model_dir) and not tf.io.gfile.isdir(model_dir):
    raise checks.Error(f"{_folder(model_dir)}, which is a file; name a folder, which "
                       "need not exist yet.")
  try:
    tf.io.gfile.makedirs(model_dir)
  except tf.errors.OpError as error:
    if not tf.io.gfile.isdir(model_dir):
      raise checks.Error(
          f"{_folder(model_dir)}, which cannot be made: {error.message}. Name another."
          ) from error


def _folder(model_dir):
  return f"`{checks.called('--model_dir')}` is {model_dir!r}"


def check_writable(model_dir: str) -> None:
  """Raises a ValueError if an existing model directory is not writable."""
  try:
    _write_and_remove(model_dir, "training can write here")
  except tf.errors.OpError as error:
    raise checks.Error(
        f"{_folder(model_dir)}, where checkpoints cannot be written: "
        f"{error.message}. Make room or give permission, or name another."
        ) from error


def check_room(folder: str) -> None:
  """Makes a folder, and raises a `tf.errors.OpError` if no file can be written there.

  On a full disk TensorFlow would write no events, and raise nothing.
  """
  tf.io.gfile.makedirs(folder)
  _write_and_remove(folder, _ROOM * " ")


def _write_and_remove(folder, text):
  probe = os.path.join(folder, "write_test.tmp" + 32 * "0")
  try:
    with tf.io.gfile.GFile(probe, "w") as f:
      f.write(text)
  finally:
    if tf.io.gfile.exists(probe):
      tf.io.gfile.remove(probe)


def write_state(folder: str, names: Sequence[str]) -> None:
  """Writes the file `checkpoint`, which names the checkpoints of a folder, newest last.

  `tf.train.update_checkpoint_state` fails for relative folders, and mistakes folders in
  cloud storage for relative ones.
  """
  lines = [f'model_checkpoint_path: "{names[-1]}"\n',
           *(f'all_model_checkpoint_paths: "{name}"\n' for name in names)]
  write_whole(os.path.join(folder, "checkpoint"), "".join(lines))


def write_whole(path: str, text: str) -> None:
  """Writes a file as a whole or not at all."""
  with tf.io.gfile.GFile(f"{path}.unfinished", "w") as f:
    f.write(text)
  tf.io.gfile.rename(f"{path}.unfinished", path, overwrite=True)


def read_record(path: str, make: Callable[[Any], Any], remove: str) -> Any:
  """What a function makes of the content of a JSON file; None if there is no such file.

  Raises:
    ValueError: the file, or what it holds, cannot be read. The message says what to
      remove, in the words of `remove`, and what happens then.
  """
  if not tf.io.gfile.exists(path):
    return None
  try:
    with tf.io.gfile.GFile(path) as f:
      return make(json.load(f))
  except (KeyError, TypeError, ValueError) as error:
    raise checks.Error(
        f"{path!r} cannot be read ({error}); bring it back, or remove {remove}."
        ) from error


def remove_partial(model_dir: str) -> None:
  """Removes files that a killed or failed process left incomplete."""
  for name in tf.io.gfile.listdir(model_dir):
    if not _PARTIAL.fullmatch(name.rstrip("/")):
      continue
    logging.warning("Removing %s in %s, which was left unfinished.",
                    name, model_dir)
    path = os.path.join(model_dir, name)
    if tf.io.gfile.isdir(path):
      tf.io.gfile.rmtree(path)
    else:
      tf.io.gfile.remove(path)


def remove_without_index(path: str) -> None:
  """Removes the data files of a checkpoint whose index was never written."""
  if not tf.io.gfile.exists(f"{path}.index"):
    for name in tf.io.gfile.glob(f"{path}.data-?????-of-?????"):
      tf.io.gfile.remove(name)
