"""Finds the complete checkpoints of a model directory, and the one to resume from.

This module reads and writes files; nothing here runs a model.

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
from collections.abc import Iterable
from collections.abc import Sequence
import json
import os
import re
from typing import Any

from absl import logging
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
import tensorflow.compat.v1 as tf

BEST = "best"  # The subfolder with the best checkpoint, which validation.py keeps.
_LEFT = "left_checkpoints.json"  # Steps of this folder, in a list.
_INDEX = re.compile(r"model\.ckpt-(\d+)\.index")

# Files that TensorFlow writes and then renames.
_PARTIAL = re.compile(
    r"model\.ckpt-\d+_temp(_[0-9a-f]{32})?|.+\.tmp[0-9a-f]{32}"
    r"|.+\.tempstate\d+|(checkpoint|\w+\.json)\.unfinished")

_ROOM = 1 << 14  # Bytes; more than the events of an evaluation.


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


def check(path: str, checksums: bool = False) -> None:
  """Checks that a checkpoint is complete.

  Args:
    path: a string, without the suffix `.index`.
    checksums: whether to read the whole checkpoint and compare its checksums.

  Raises:
    DamagedError: the checkpoint is incomplete.
  """
  check_name(path, "the checkpoint")
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


def is_whole(path: str) -> bool:
  """Returns whether there is a checkpoint with all of its files."""
  try:
    check(path)
  except DamagedError:
    return False
  return True


def _check_size(path, shapes, dtypes):
  """Checks the total size, as only the index knows which file holds which variable."""
  needed = sum(tf.TensorShape(shapes[name]).num_elements() * dtypes[name].size
               for name in shapes)
  # The folder may hold other shardings of the same step: `-of-00002`.
  found = collections.Counter({"none": 0})
  for name in tf.io.gfile.glob(f"{path}.data-?????-of-?????"):
    found[name.rpartition("-of-")[-1]] += tf.io.gfile.stat(name).length
  size = max(found.values())
  if size < needed:
    raise DamagedError(
        f"the files {path}.data-* have {size:,} bytes, of {needed:,}")


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
  newest = _newest(model_dir)
  if newest is None:
    return None
  try:
    check(newest)
  except DamagedError as error:
    raise DamagedError(explain_damage(newest, error)) from error
  return newest


def chosen(model_dir: str) -> str | None:
  """Finds the checkpoint to read: the one that `checkpoint` names, or else the newest.

  A copied folder may lack this file, or have one with paths of another machine.

  Returns:
    a path, which may be of a damaged checkpoint; None if there is no checkpoint.
  """
  named, _ = _named(model_dir)
  if named and tf.train.checkpoint_exists(named):
    return named
  return find(model_dir)[-1] if find(model_dir) else None


def of_steps(model_dir: str, steps: int | Sequence[int], parameter: str,
             folder: str = "--model_dir") -> list[str]:
  """Returns the paths of the checkpoints of some steps, oldest first, each once.

  Args:
    model_dir: the folder of the checkpoints.
    steps: a step, or a list or tuple of steps; -1 for `chosen`.
    parameter: the parameter or flag that gives the steps, for the message.
    folder: the parameter or flag that gives the folder.

  Raises:
    ValueError: there is no checkpoint, or not of each step.
  """
  found = {step_of(path): path for path in find(model_dir)}
  last = chosen(model_dir)
  if last is None:
    raise checks.Error(nothing_in(model_dir, folder))
  asked: list[Any] = [*steps] if isinstance(steps, (list, tuple)) else [steps]
  paths = [last if step == -1 else found.get(step) for step in asked]
  if None in paths:
    raise checks.Error(
        f"{parameter} is {asked[0] if len(asked) == 1 else steps} but {model_dir!r} "
        f"holds {_steps_in_words([*found])}; name one of them, or -1 for the last.")
  return sorted(set(filter(None, paths)), key=step_of)


def _steps_in_words(steps, most=12):
  """The steps in their order, or the first and last few of many."""
  if len(steps) > most:
    steps = [*steps[:most // 2], "...", *steps[-most // 2:]]
  noun = "step" if len(steps) == 1 else "steps"
  return f"the {noun} {', '.join(map(str, steps))}" if steps else "no checkpoint"


def nothing_in(model_dir: str, folder: str = "--model_dir") -> str:
  """Says that a folder has no checkpoint; the arguments are those of `of_steps`."""
  return (f"`{checks.called(folder)}` is {model_dir!r}, where there is no checkpoint; "
          "train first, or name the folder of a trained model.")


def _newest(model_dir):
  """The checkpoint to continue from, as in `latest`, complete or not."""
  found = find(model_dir)
  named, listed = _named(model_dir)
  if named and named not in found and tf.train.checkpoint_exists(named):
    return named  # In another directory, on purpose.
  if named in found and found[-1] in listed:
    return named
  if not found and named:
    raise MissingError(
        f"`checkpoint` in {model_dir} names {named}, which is not there, nor "
        "is any other checkpoint; bring it back, or remove `checkpoint` to "
        f"begin at step 0{_or_best(model_dir)}.")
  return found[-1] if found else None


def branch(model_dir: str) -> list[str]:
  """Returns the checkpoints that led to the one to continue from, oldest first.

  Whoever goes back leaves later checkpoints behind, which `prepare` writes down.

  Raises:
    MissingError: as in `latest`.
  """
  end = _newest(model_dir)
  if end is None:
    return []
  left = _left(model_dir)
  return [*(path for path in find(model_dir)
            if step_of(path) < step_of(end) and step_of(path) not in left), end]


def _left(model_dir):
  """The steps of the checkpoints that were left, as a set."""
  path = os.path.join(model_dir, _LEFT)
  if not tf.io.gfile.exists(path):
    return set()
  with tf.io.gfile.GFile(path) as f:
    text = f.read()
  try:
    return set(json.loads(text))
  except (TypeError, ValueError) as error:
    raise checks.Error(f"{path!r} cannot be read ({error}); bring it back, or remove "
                       "it, and every checkpoint counts.") from error


def _leave(model_dir, newest):
  """Writes down which checkpoints do not lead to the one to continue from."""
  steps, end = set(map(step_of, find(model_dir))), step_of(newest)
  before = _left(model_dir)
  # Whoever continues from one of them has gone forth again.
  left = {step for step in before if step > end} if end in before else before
  _write_left(model_dir, before, left & steps | {step for step in steps if step > end})


def _write_left(model_dir, before, left):
  if left != before:
    write_whole(os.path.join(model_dir, _LEFT), json.dumps(sorted(left)))


def will_save(model_dir: str, step: int) -> None:
  """Declares that a checkpoint of a step takes the place of one that was left."""
  before = _left(model_dir)
  _write_left(model_dir, before, before - {step})


def step_of(path: str) -> int:
  """Returns the step in the path of a checkpoint; 0 if the path has no step."""
  found = re.search(r"model\.ckpt-(\d+)$", path)
  return int(found[1]) if found else 0


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


def _named(model_dir):
  """The paths in the file `checkpoint`, as (the one that it names, a list of all).

  If this folder has a checkpoint of the same name as one that the file names elsewhere,
  the folder was copied, and its own checkpoint counts.

  Returns:
    (None, []) if the file is missing or incomplete.
  """
  state = _read_state(model_dir)
  if state is None:
    return None, []
  own = {os.path.basename(path): path for path in find(model_dir)}
  named, *listed = (own.get(os.path.basename(path), path) for path in (
      state.model_checkpoint_path, *state.all_model_checkpoint_paths))
  return named, listed


def _read_state(model_dir):
  """Returns the content of `checkpoint`; None if it is missing or incomplete."""
  try:
    return tf.train.get_checkpoint_state(model_dir)
  except ValueError as error:  # It is empty.
    logging.warning("%s", error)
    return None


def prepare(model_dir: str) -> str | None:
  """Makes a model directory ready for training.

  Only the chief process may call it, after `check_folder`. It removes temporary files
  of a killed process, and makes `checkpoint` name the newest complete checkpoint. It
  neither removes nor changes checkpoints.

  Returns:
    the result of `latest`.

  Raises:
    ValueError: the directory is not writable, or as in `latest`.
  """
  check_writable(model_dir)
  newest = latest(model_dir)
  remove_partial(model_dir)
  if newest:
    _leave(model_dir, newest)
  state = _read_state(model_dir)
  if newest and (not state or state.model_checkpoint_path != newest):
    named, listed = _named(model_dir)
    if named != newest:
      logging.warning(
          "`checkpoint` in %s does not name the newest complete checkpoint, as happens "
          "when a process is killed, or a folder is copied: training continues from "
          "%s. (To go back to an older one, move the newer ones away.)", model_dir,
          newest)
    others = [path for path in listed if path in find(model_dir) and path != newest]
    write_state(model_dir, [*map(os.path.basename, [*others, newest])])
  return newest


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


def check_name(path: str, what: str | None = None) -> None:
  """Raises a ValueError for a folder or checkpoint that TensorFlow takes for a pattern.

  It would train there, but find no checkpoint.

  Args:
    path: the path of a folder or a checkpoint.
    what: the name of the parameter in the message; by default the model's folder.
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
  probe = os.path.join(model_dir, "write_test.tmp" + 32 * "0")
  try:
    with tf.io.gfile.GFile(probe, "w") as f:
      f.write("training can write here")
    tf.io.gfile.remove(probe)
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
  probe = os.path.join(folder, "write_test.tmp" + 32 * "0")
  try:
    with tf.io.gfile.GFile(probe, "w") as f:
      f.write(_ROOM * " ")
  finally:
    if tf.io.gfile.exists(probe):
      tf.io.gfile.remove(probe)


def check_variables(path: str, variables: Iterable[tf.Variable],
                    optimizer: optimizer_slots.Optimizer | None = None) -> None:
  """Checks that a checkpoint belongs to the model that restores it.

  TensorFlow would ignore variables that the model lacks, for example when R+V resumes
  as V. The next checkpoint would then lack them.

  The checkpoint may have more optimizer slots than the model, as in evaluation.

  Args:
    path: the path of the checkpoint.
    variables: all `tf.Variable` of the model.
    optimizer: makes the optimizer; it is asked for its slots if the checkpoint has
      variables that neither the model nor an optimizer of Mesh TensorFlow has.

  Raises:
    ValueError: variables differ; the message names them.
  """
  variables = list(variables)
  reader = tf.train.load_checkpoint(path)
  saved = reader.get_variable_to_shape_map()
  ours = {v.op.name: v.shape.as_list() for v in variables}
  missing = [name for name in ours if name not in saved]
  extra = [name for name in saved
           if name not in ours and not optimizer_slots.is_slot(name, ours)]
  endings = optimizer_slots.learned(extra, ours, optimizer)
  extra = [name for name in extra
           if not optimizer_slots.is_slot(name, ours, endings)]
  shapes = {name: f"{name} {saved[name]} instead of {ours[name]}"
            for name in ours if saved.get(name, ours[name]) != ours[name]}
  found = [_few("it lacks", _without_slots(missing)),
           _few("it also has", _without_slots(extra)),
           _few("other shapes have", map(shapes.get, _without_slots(shapes)))]
  if any(found):
    raise checks.Error(
        f"{path} is of another model: {'; '.join(filter(None, found))}. Train another "
        f"model in another `{checks.called('--model_dir')}`, or give the gin files and "
        "bindings of this one, which are in its operative_config.gin"
        f"{_of_an_optimizer(extra, ours)}.")
  _check_dtypes(path, variables, reader.get_variable_to_dtype_map())


def _check_dtypes(path, variables, saved):
  other = [v.op.name for v in variables if saved[v.op.name] != v.dtype.base_dtype]
  if other:
    now, then = ({dtypes[name].name for name in other} for dtypes in (
        {v.op.name: v.dtype.base_dtype for v in variables}, saved))
    raise checks.Error(
        f"{path} holds {' and '.join(sorted(then))}, but the model has "
        f"{' and '.join(sorted(now))} in {_few('', other).strip()}; bind "
        "`get_variable_dtype.master_dtype` as in the training of the checkpoint, or "
        "start a model of another folder from it, by `warm_start.checkpoint`, which "
        "converts.")


def _of_an_optimizer(extra, ours):
  """What to do if the variables in `extra` are the slots of a user's optimizer."""
  begin = tuple(f"{other}{sign}" for other in ours for sign in "_/")
  if not extra or not all(name.startswith(begin) for name in extra):
    return ""
  return ("; if an optimizer of your own made these, bind it as `utils.run.optimizer`, "
          "or give it to `MtfModel`")


def _without_slots(names):
  """Removes the optimizer slots of variables that are also in `names`."""
  return [name for name in names if not optimizer_slots.is_slot(name, names)]


def _few(title, names, most=4):
  """Returns a title and the first few names, or None if there are none."""
  names = sorted(names)
  if not names:
    return None
  more = f" and {len(names) - most} more" if len(names) > most else ""
  noun = "variable" if len(names) == 1 else "variables"
  return f"{title} {len(names)} {noun} ({', '.join(names[:most])}{more})"
