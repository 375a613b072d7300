"""Training with a chosen seed, and evaluation with a default seed.

Mesh TensorFlow's trainer sets no seed, so no run can be repeated. On CPUs and GPUs its
dropout draws new seeds in every process. TensorFlow's random numbers begin anew with
each session, so with fixed seeds dropout would repeat itself after a restart.

T5's evaluations have no seed either. Without a seed, span corruption drops other spans
each time, and losses are not comparable.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import inspect
import random
from typing import Any
import zlib

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import placement_mesh_impl
from mesh_tensorflow.transformer import utils
import seqio
from synthesizer_mtf import gin_internals
from synthesizer_mtf import patches
from synthesizer_mtf.trainer.data import data_checks
import tensorflow.compat.v1 as tf

EVALUATION = 1  # As `train_with_seed` has by default; any number would do.
_EVALUATED = "t5.models.mesh_transformer.mesh_eval_dataset_fn"
# TensorFlow's functions of random numbers that Mesh uses, and those without a state.
_STATELESS = {tf.random.uniform: tf.random.stateless_uniform,
              tf.random.normal: tf.random.stateless_normal}
_BATCH = "synthesizer_mtf_batch"
_MOST_ITERATIONS = 2**20  # Leaves room for 2**43 steps.
# The loops that are being lowered, with their `mtf.Lowering` and their scopes.
_LOOPS: list[Any] = []
_PROCESS_SEED = random.SystemRandom().randrange(2**31)  # Without a seed of the graph.


@gin.configurable(module="synthesizer_mtf")
def train_with_seed(
    estimator: tf.estimator.Estimator, *args: Any, seed: int = 1,
    train_model_fn: Callable[..., Any] = utils.train_model, **kwargs: Any) -> Any:
  """Trains as Mesh TensorFlow's `train_model` does, but with a seed.

  It replaces `train_model` as `utils.run.train_model_fn`. The order of the examples has
  its own seed, `mesh_train_dataset_fn.seed`.

  Args:
    estimator: a `CarefulEstimator`.
    *args: arguments of `train_model`.
    seed: the seed of initial variables and dropout.
    train_model_fn: the function that trains, such as
      `@train_with_attention_summaries`.
    **kwargs: more arguments of `train_model`.
  """
  estimator.configure(tf_random_seed=seed)
  with random_by_name():
    return train_model_fn(estimator, *args, **kwargs)


@contextlib.contextmanager
def random_by_name() -> Iterator[None]:
  """Makes random numbers depend on names and steps alone, within a `with` block.

  The seed of the graph, the name of an operation, the step of the training and the
  iterations of loops give an operation its numbers. So a training that was killed goes
  on with the numbers of one that was not.
  """
  with (patches.wrapped("random seeds", placement_mesh_impl.PlacementMeshImpl,
                        _with_seeds_of_names), remembering_loops()):
    yield


def remembering_loops() -> contextlib.AbstractContextManager[None]:
  """Notes loops while they are lowered, for `numbers_of_names`."""
  return patches.wrapped("loops", mtf.WhileLoopOperation, _remembered)


def raising_last(spec: tf.estimator.EstimatorSpec) -> tf.estimator.EstimatorSpec:
  """Makes each step of a training raise the step's number when all else is done.

  Mesh TensorFlow raises it at any moment of the step. So Adafactor's decay rate,
  schedules of learning rates, dropout and its own line about the loss would read this
  number or the next.

  A specification that does not raise it beside other changes does not change.
  """
  step = tf.train.get_global_step()
  changes = _grouped(getattr(spec.train_op, "op", spec.train_op))
  raised = [op for op in changes
            if op.type.startswith("AssignAdd") and op.inputs[0].op is step.op]
  if not raised:
    return spec
  before = [spec.loss.op, *(op for op in changes if op not in raised)]
  before += [op for raising in raised for op in raising.control_inputs]
  with tf.control_dependencies(before):
    return spec._replace(train_op=tf.group(tf.assign_add(step, raised[0].inputs[1])))


def _grouped(op):
  """The operations that `tf.group` has made one."""
  if op.type != "NoOp" or not op.control_inputs:
    return [op]
  return [one for part in op.control_inputs for one in _grouped(part)]


def batch_number() -> tf.Variable:
  """A local variable of the default graph, on which all random numbers depend.

  Predictions count their batches by it, as they have no steps.
  """
  batch = tf.Variable(tf.zeros([], tf.int64), trainable=False, use_resource=True,
                      collections=[tf.GraphKeys.LOCAL_VARIABLES], name=_BATCH)
  tf.add_to_collection(_BATCH, batch)
  return batch


def numbers_of_names(sizes: list[int], tf_fn: Callable[..., tf.Tensor],
                     kwargs: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
  """The numbers that `random_by_name` draws on one processor, for XLA.

  Args:
    sizes: the shape of the result.
    tf_fn: `tf.random.uniform`, or another function with a stateless twin.
    kwargs: its arguments, except for the shape and the seed.

  Returns:
    a tensor [sizes...], and the step, outside of loops. TensorFlow's kernels make a
    uniform float32 of the last 23 of 32 random bits, and XLA of the first, so it is
    made of the bits here.
  """
  graph = tf.get_default_graph()
  own = "/".join([*_scopes(), graph.get_name_scope()]) + f" {[0] * len(sizes)}"
  iterations = [x.one_slice for x in _iterations() or ()] or [
      tf.reduce_sum(x.one_slice) for x in _positions()]
  seed = _PROCESS_SEED if graph.seed is None else graph.seed
  step = _running_step()
  seeds = tf.stack([zlib.crc32(f"{seed} {own}".encode()), _moment(step, iterations)])
  if tf_fn is not tf.random.uniform or tf.as_dtype(
      kwargs.get("dtype", tf.float32)) != tf.float32:
    return _STATELESS[tf_fn](sizes, seeds, alg="philox", **kwargs), step
  bits = tf.random.stateless_uniform(
      sizes, seeds, minval=None, maxval=None, dtype=tf.int32, alg="philox")
  one_to_two = tf.bitcast((bits & 0x7fffff) | 0x3f800000, tf.float32)
  low, high = kwargs.get("minval", 0), kwargs.get("maxval", 1)
  return (one_to_two - 1.) * (high - low) + low, step


def _scopes():
  """The names of the loops around, which TensorFlow's functions of loops leave out."""
  if not tf.control_flow_v2_enabled():
    return []
  return [f"{scope}/while" for _, _, scope in _LOOPS]


def _with_seeds_of_names(original):
  """Draws the numbers of `random_by_name`; equal slices have the same numbers."""
  @functools.wraps(original)
  def random(self, shape, tf_fn, kwargs):
    slice_shape = self.slice_shape(shape)
    graph = tf.get_default_graph()
    name = graph.get_name_scope()
    iterations = _iterations()
    stateless = None if iterations is None else _STATELESS.get(tf_fn)

    def random_slice(processor, *iterations):
      own = f"{name} {self.slice_begin(shape, processor)}"
      if stateless is None:
        return tf_fn(slice_shape, seed=zlib.crc32(own.encode()), **kwargs)
      key = zlib.crc32(f"{graph.seed} {own}".encode())
      moment = _moment(_running_step(), iterations)
      return stateless(slice_shape, tf.stack([key, moment]), alg="philox", **kwargs)

    return self.slicewise(random_slice, self.laid_out_pnum(), *iterations or ())
  return random


def _remembered(original):
  """Notes the loop that is being lowered."""
  @functools.wraps(original)
  def lower(self, lowering):
    _LOOPS.append((self, lowering, tf.get_default_graph().get_name_scope()))
    try:
      original(self, lowering)
    finally:
      _LOOPS.pop()
  return lower


def _iterations():
  """The integers among the variables of the current loops, such as counters.

  Returns:
    a list of laid-out tensors <int>[]; None if a loop has no such variable.
  """
  numbers = []
  for loop, lowering, _ in _LOOPS:
    counters = [x for x in loop._body_inputs
                if x.dtype.is_integer and not x.shape.dims]
    if not counters:
      return None
    numbers += [lowering.tensors[x] for x in counters]
  return numbers


def _positions():
  """What tells the iterations of loops without counters: their first integers.

  A loop that decodes begins with the position of each row, and raises all of them.
  """
  variables = [(lowering, [x for x in loop._body_inputs if x.dtype.is_integer])
               for loop, lowering, _ in _LOOPS]
  return [lowering.tensors[integers[0]] for lowering, integers in variables if integers]


def _moment(moment, iterations):
  """A number <int64>[] that differs between all steps and iterations of a training."""
  for iteration in iterations:
    moment = moment * _MOST_ITERATIONS + tf.cast(iteration, tf.int64)
  return moment


def _running_step():
  """The step that is running, or the batch of predictions: <int64>[], out of loops."""
  with tf.init_scope(), tf.name_scope(None):  # Outside of loops.
    last = tf.train.get_global_step()
    if last is None:
      return tf.zeros([], tf.int64)
    return tf.add_n([tf.identity(last), *(
        batch.read_value() for batch in tf.get_collection(_BATCH))])


@gin.config.register_finalize_hook
def bind_evaluation_seed(config: gin_internals.Config, task: str | None = None
                         ) -> dict | None:
  """Gives evaluations a seed, unless gin binds one or shuffles their examples.

  If the data of the task, by default MIXTURE_NAME, come from a function that takes no
  seed, there is none, as in T5.
  """
  bound = {}
  for (_, selector), values in config.items():
    if selector == _EVALUATED:
      bound.update(values)
  if bound.get("shuffle_eval_examples"):
    return None
  task = task or config.get(("MIXTURE_NAME", "gin.macro"), {}).get("value")
  if _takes_seed(task):
    return None if "seed" in bound else {f"{_EVALUATED}.seed": EVALUATION}
  # gin may have been parsed before anybody named the task.
  return {f"{_EVALUATED}.seed": None} if bound.get("seed") == EVALUATION else None


def _takes_seed(name):
  """Whether all functions that give the data of a task or mixture take a seed.

  seqio passes a seed to functions only by this name, as the third parameter.
  """
  return all(
      [*inspect.signature(task.source._dataset_fn).parameters][2:3] == ["seed"]
      for task in data_checks.subtasks(name)
      if isinstance(task.source, seqio.FunctionDataSource))
