"""Whether a checkpoint belongs to the model that restores it."""

from collections.abc import Iterable

from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
import tensorflow.compat.v1 as tf


def check_variables(path: str, variables: Iterable[tf.Variable],
                    optimizer: optimizer_slots.Optimizer | None = None) -> None:
  """Checks that a checkpoint belongs to the model that restores it.

  TensorFlow would ignore variables that the model lacks, for example when R+V resumes
  as V. The next checkpoint would then lack them. The checkpoint may have more slots of
  the optimizer than the model, as in evaluation. The optimizer is asked for its slots
  if there are variables that neither the model nor Mesh TensorFlow's optimizers have.

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
  differing = [_few("it lacks", _without_slots(missing)),
               _few("it also has", _without_slots(extra)),
               _few("other shapes have", map(shapes.get, _without_slots(shapes)))]
  if any(differing):
    raise checks.Error(
        f"{path} is of another model: {'; '.join(filter(None, differing))}. Train "
        f"another model in another `{checks.called('--model_dir')}`, or give the gin "
        "files and bindings of this one, which are in its operative_config.gin"
        f"{_optimizer_hint(extra, ours)}.")
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


def _optimizer_hint(extra, ours):
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
