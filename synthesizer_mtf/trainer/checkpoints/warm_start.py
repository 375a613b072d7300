"""Starts a model from a checkpoint with another attention, or another length.

One binding, `warm_start.checkpoint`, makes T5's trainer start warm:

  --gin_param="warm_start.checkpoint = 'gs://.../model.ckpt-999900'"

T5's own `utils.run.init_checkpoint`, and `MtfModel.finetune`, start in the same way,
but the step and the optimizer go on. In Mesh TensorFlow they take only variables of the
same name, shape and dtype, and skip all others in silence. Here the self-attention may
be of another class, and tables may grow. If the checkpoint lacks a variable that is not
new, an error is raised; a warning, if gin chooses no attention, as Mesh TensorFlow
trains then.

The functions that T5 lets gin choose for its parameter, such as
`should_load_variable.filter_fn`, count in both.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import os
from typing import Any
from typing import NamedTuple

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import heads_record
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.checkpoints import warm_start_plan
import tensorflow.compat.v1 as tf

_RUN = "mesh_tensorflow.transformer.utils.run"
_SELECTOR = "synthesizer_mtf.warm_start"
_PARAMETER = "warm_start.checkpoint"
_MODEL_FN = "utils.tpu_estimator_model_fn"


@gin.configurable("warm_start", module="synthesizer_mtf")
def train(estimator: tf.estimator.Estimator, *args: Any,
          checkpoint: str | None = gin.REQUIRED, fresh: str | None = None,
          renames: Iterable[tuple[str, str]] = (),
          continue_training: bool = False, interpolate: bool = False,
          train_model_fn: Callable[..., Any] = utils.train_model,
          **kwargs: Any) -> Any:
  """Trains as `train_model_fn` does, from the variables of a checkpoint.

  `warm_start_plan.make_plan` finds the variables, which are cast to the model's dtype.
  The log says which are taken, resized, fresh and unused. New positions of a growing
  table keep their own initial values, or are interpolated. If `model_dir`
  already has checkpoints, the model resumes from the last of these instead.

  If another function trains, as in T5's `MtfModel`, `get_estimator` gives the estimator
  the same start.

  Args:
    estimator: a `CarefulEstimator`.
    *args: arguments of `train_model_fn`.
    checkpoint: the path of a checkpoint, such as "DIR/model.ckpt-999900", or of a
      folder, for its last checkpoint; None to start fresh.
    fresh: a regular expression; variables whose names it matches start fresh,
      whatever the checkpoint holds.
    renames: pairs (regular expression, replacement) that turn a name in the model
      into the name in the checkpoint, if they differ.
    continue_training: whether the step and the optimizer's variables continue, as
      with `utils.run.init_checkpoint`; `utils.run.train_steps` then includes the
      checkpoint's steps. If False, the step counts from 0 and the optimizer starts
      fresh: at step 0 Adafactor would forget its variables anyway.
    interpolate: whether a table that grows is interpolated linearly in the position,
      from its old first entry to its old last one.
    train_model_fn: the function that trains. A binding of `utils.run.train_model_fn`
      is moved here automatically.
    **kwargs: more arguments of `train_model_fn`.

  Raises:
    ValueError: there is no such checkpoint, or it does not fit.
  """
  if checkpoint is not None and not estimator.latest_checkpoint():
    find_checkpoint(checkpoint)
    estimator.start_from(WarmStart(checkpoint, fresh, renames, continue_training,
                                   interpolate=interpolate))
  return train_model_fn(estimator, *args, **kwargs)


def find_checkpoint(path: str, parameter: str = _PARAMETER) -> str:
  """The path without ".index" of a checkpoint, or of the last one in a folder.

  Raises:
    ValueError: there is no checkpoint, or it is damaged. The message calls the path
      `parameter`.
  """
  path = os.path.expanduser(path)
  if tf.io.gfile.isdir(path):
    try:
      checkpoint = complete.latest(path)
    except complete.MissingError:
      checkpoint = None
  else:
    path = path[:-len(".index")] if path.endswith(".index") else path
    checkpoint = path if tf.io.gfile.exists(path + ".index") else None
  if not checkpoint:
    raise checks.Error(
        f"`{parameter}` is {path!r} but there is no checkpoint; name "
        "a file such as DIR/model.ckpt-999900.index, without .index, or DIR.")
  try:
    complete.check(checkpoint)
  except complete.DamagedError as error:
    raise checks.Error(f"`{parameter}` is {path!r}, but {error}; copy the checkpoint "
                       "again, or name another.") from error
  return checkpoint


class WarmStart(NamedTuple):
  """The source of a model's variables.

  Attributes:
    checkpoint: as in `train`, like the next three.
    parameter: what messages call the parameter that names the checkpoint.
    strict: whether a variable that is missing in the checkpoint, and is not new, is an
      error. If not, it starts fresh with a warning.
    interpolate: as in `train`.
  """
  checkpoint: str
  fresh: str | None = None
  renames: Iterable[tuple[str, str]] = ()
  continue_training: bool = False
  parameter: str = _PARAMETER
  strict: bool = True
  interpolate: bool = False

  def added_to(
      self, spec: tf.estimator.EstimatorSpec,
      optimizer: optimizer_slots.Optimizer | None = None
  ) -> tf.estimator.EstimatorSpec:
    """Makes a specification of training initialize its variables from the checkpoint.

    The variables are in the default graph; `optimizer` makes the optimizer.

    Raises:
      ValueError: there is no such checkpoint, or it does not fit.
    """
    checks.check_boolean("warm_start.interpolate", self.interpolate)
    path = find_checkpoint(self.checkpoint, self.parameter)
    heads_record.check_start(path)
    model = _shapes()
    assign = assignments(
        path, getattr(spec.scaffold, "on_devices", {}), fresh=self.fresh,
        renames=self.renames, continue_training=self.continue_training,
        selection=_mesh_selection(), strict=self.strict, interpolate=self.interpolate,
        endings=optimizer_slots.learned(model, model, optimizer))
    before = spec.scaffold.init_fn

    def initialize(scaffold, session):
      del scaffold
      if before:
        before(session)
      session.run(assign)

    return spec._replace(scaffold=tf.train.Scaffold(
        init_fn=initialize, copy_from_scaffold=spec.scaffold))


def _mesh_selection():
  """The `Selection` of the functions and the filter that gin binds for Mesh."""
  return warm_start_plan.Selection(
      utils.should_load_variable, utils.init_checkpoint_variable_mapping,
      gin_files.bound(f"{_MODEL_FN}.init_variable_filter", ""))


def chosen(init_checkpoint: str | None, strict: bool = True) -> WarmStart | None:
  """The warm start of a model.

  Args:
    init_checkpoint: the value of T5's parameter; the step and the optimizer go on.
    strict: see `WarmStart`; for `init_checkpoint` only.

  Returns:
    the one that gin binds, or that of `init_checkpoint`; None if there is neither.

  Raises:
    ValueError: there are both, or gin binds the step not to go on.
  """
  given = gin.get_bindings(_SELECTOR)
  given.pop("train_model_fn", None)
  checkpoint = given.get("checkpoint")
  if init_checkpoint is None:  # Mesh TensorFlow would ignore this binding.
    init_checkpoint = gin_files.bound(f"{_MODEL_FN}.init_checkpoint", None)
  if init_checkpoint is None:
    return None if checkpoint is None else WarmStart(**given)
  if checkpoint is not None:
    raise checks.Error(
        f"`init_checkpoint` is {init_checkpoint!r} and `warm_start.checkpoint` is "
        f"{checkpoint!r}; leave out the first, or bind the second to None.")
  if not given.get("continue_training", True):
    raise checks.Error(
        f"`init_checkpoint` is {init_checkpoint!r}, with which the step goes on, but "
        "`warm_start.continue_training` is False; leave that out, or name the "
        "checkpoint by `warm_start.checkpoint`, with which the step counts from 0.")
  return WarmStart(init_checkpoint, given.get("fresh"), given.get("renames", ()),
                   True, "init_checkpoint", strict, given.get("interpolate", False))


def _shapes():
  """The shapes of the graph's variables."""
  return {v.op.name: tuple(v.shape.as_list()) for v in tf.global_variables()}


def assignments(path: str, on_devices: Mapping[str, Any] | None = None,
                **options: Any) -> tf.Operation:
  """Assigns values of a checkpoint to the graph's variables, after the initializers.

  Args:
    path: the path of the checkpoint.
    on_devices: the variables by name whose values JAX has, with `assign` and `value`.
    **options: those of `warm_start_plan.make_plan`.
  """
  reader = tf.train.load_checkpoint(path)
  saved = {name: tuple(shape) for name, shape in
           sorted(reader.get_variable_to_shape_map().items())}
  variables = {v.op.name: v for v in tf.global_variables()}
  model = _shapes()
  plan = warm_start_plan.make_plan(path, model, saved, **options)
  _check_tiles(plan, saved, model)
  for line in warm_start_plan.describe(path, plan, model, saved):
    tf.logging.info("%s", line)
  for line in warm_start_plan.warnings(path, plan, model):
    tf.logging.warning("%s", line)
  dtypes = reader.get_variable_to_dtype_map()
  assigned: list[tf.Operation] = []

  def restored(source):
    value, = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=[source], shape_and_slices=[""],
        dtypes=[dtypes[source]])
    return tf.reshape(value, saved[source])

  for name, source in plan.taken.items():  # One at a time, which takes less memory.
    with tf.control_dependencies(assigned[-1:]):
      assigned.append(_assign(variables[name], restored, source,
                              plan.interpolated.get(name),
                              (on_devices or {}).get(name)))
  return tf.group(*assigned)


def _check_tiles(plan, saved, model):
  """Raises a ValueError if a table that repeats would be interpolated."""
  bound = gin_internals.bindings()
  for (scope, selector), parameters in bound.items():
    tile = gin_internals.resolved(bound, parameters.get("tile_length"))
    stack, cls = scope.partition("/")[0], selector.rpartition(".")[2]
    for name in plan.interpolated if tile else ():
      if warm_start_plan.has_variable(cls, name) and (
          stack not in ("encoder", "decoder") or name.startswith(stack + "/")):
        raise checks.Error(
            f"`warm_start.interpolate` is True, but `{cls}.tile_length` is {tile}, so "
            f"{name!r} repeats, and {list(saved[plan.taken[name]])} in the checkpoint "
            f"cannot become {list(model[name])} between positions; bind the "
            "`tile_length` of the checkpoint, or leave out `warm_start.interpolate`.")


def _interpolated(value, axis, size):
  """A <float32> tensor with `size` entries along an axis, linearly between the old."""
  last = value.shape.as_list()[axis] - 1
  position = np.linspace(0, last, size)
  before = position.astype(int)
  shape = [1] * value.shape.rank
  shape[axis] = size
  share = (position - before).astype(np.float32).reshape(shape)
  return (tf.gather(value, before, axis=axis) * (1 - share)
          + tf.gather(value, np.minimum(before + 1, last), axis=axis) * share)


def _grown(restored, source, growth, new):
  """The value of a checkpoint's variable along its `Growth`, in a new shape."""
  value = tf.cast(restored(source), tf.float32)
  for axis in growth.axes:
    size = new[axis]
    if not growth.before:
      value = _interpolated(value, axis, size)
      continue
    # The entry before the first is the end of the line, and belongs to its variable.
    first = tf.gather(tf.cast(restored(growth.before), tf.float32), [0], axis=axis)
    value = _interpolated(tf.concat([first, value], axis), axis, size + 1)
    value = tf.gather(value, np.arange(1, size + 1), axis=axis)
  return value


def _assign(variable, restored, source, growth, on_device):
  """Assigns the common part of a checkpoint's variable, or all of a grown one."""
  with tf.device(variable.device), tf.device("/cpu:0"):
    new = variable.shape.as_list()
    value = _grown(restored, source, growth, new) if growth else restored(source)
    value = tf.cast(value, variable.dtype.base_dtype)
    shape = value.shape.as_list()
    if new != shape:
      part = np.minimum(shape, new).tolist()  # The size of their common part.
      rest = [[0, n - p] for n, p in zip(new, part)]
      old = tf.slice(value, [0] * len(part), part)
      value = tf.where(tf.pad(tf.ones(part, tf.bool), rest), tf.pad(old, rest),
                       on_device.value() if on_device else tf.identity(variable))
    return on_device.assign(value) if on_device else tf.assign(variable, value).op


@gin.config.register_finalize_hook
def bind_training(config: gin_internals.Config) -> dict | None:
  """Makes T5's trainer start warm if a checkpoint is bound.

  Raises:
    ValueError: `utils.run.init_checkpoint` is bound as well; or the functions that
      train call each other without an end, or lack a checkpoint.
  """
  run = config.get(("", _RUN), {})
  chain = _functions_that_train(config, run.get("train_model_fn"))
  start = config.get(("", _SELECTOR), {})
  if ("", _SELECTOR) in chain and "checkpoint" not in start:
    raise checks.Error(
        "`warm_start.checkpoint` is missing, but @warm_start trains; bind the "
        "checkpoint, which alone is enough, or leave @warm_start out.")
  if start.get("checkpoint") is None:
    return None
  if run.get("init_checkpoint") is not None:
    raise checks.Error(
        "`utils.run.init_checkpoint` and `warm_start.checkpoint` are both bound; "
        "leave out the first, or bind the second to None.")
  if any(selector == _SELECTOR for _, selector in chain):
    return None  # The user has bound it.
  bindings = {f"{_RUN}.train_model_fn": gin.config.ConfigurableReference(
      _SELECTOR, evaluate=False)}
  if "train_model_fn" in run:
    bindings[f"{_SELECTOR}.train_model_fn"] = run["train_model_fn"]
  return bindings


def _functions_that_train(config, value):
  """The (scope, selector) of a `train_model_fn`, of its own one, and so on.

  Raises:
    ValueError: one of them comes again.
  """
  chain = []
  while gin_internals.is_reference(value):
    scope, selector = value.config_key
    if (scope, selector) in chain:
      raise checks.Error(
          f"`train_model_fn` is {value!r}, which trains by itself again, without an "
          "end; leave out that binding, or name another function, such as "
          "@utils.train_model.")
    chain.append((scope, selector))
    bound = {**config.get(("", selector), {}), **config.get((scope, selector), {})}
    value = bound.get("value" if selector == "gin.macro" else "train_model_fn")
  return chain
