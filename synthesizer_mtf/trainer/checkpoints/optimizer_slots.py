"""The slots of optimizers: the variables that they make for each variable of a model.

A slot has the name of its variable with an ending. The endings of Mesh TensorFlow's
optimizers are known. A user's own optimizer is asked: it makes its slots in a graph of
its own. A name that merely begins like another, as `T_after` beside `T` or `v_bias`
beside `v`, is no slot.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import math
import re

from absl import logging
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import tensorflow.compat.v1 as tf

# A class of optimizers, or a function that makes one of a learning rate.
Optimizer = Callable[..., optimize.Optimizer]

# Adafactor's `_slot_*`, momentum's and Adam's.
_ENDING = re.compile(r"(_slot_(vr|vc|v|m)|_momentum_v|/adam_[mv])$")


def split(name: str, variables: Collection[str] | None = None,
          endings: Collection[str] = ()) -> tuple[str, str]:
  """Splits the name of a slot.

  Args:
    name: the name of any variable, such as "encoder/q_slot_vr".
    variables: the names of which one must be the slot's variable; None for any.
    endings: more endings than those of Mesh TensorFlow's optimizers.

  Returns:
    (the slot's variable, the ending of the slot), such as ("encoder/q", "_slot_vr");
    (name, "") if it is not a slot.
  """
  stock = _ENDING.search(name)
  for ending in [*([stock[0]] if stock else []), *endings]:
    variable = name.removesuffix(ending)
    if variable != name and (variables is None or variable in variables):
      return variable, ending
  return name, ""


def is_slot(name: str, variables: Collection[str] | None = None,
            endings: Collection[str] = ()) -> bool:
  """Whether this variable is a slot; the arguments are those of `split`."""
  return bool(split(name, variables, endings)[1])


def count_trained(path: str) -> int | None:
  """The number of trained parameters in a checkpoint; None if it does not tell.

  Trained parameters have slots of the optimizer; a fixed table has none. A checkpoint
  that is imported, or whose optimizer makes no slots, does not tell.
  """
  shapes = dict(tf.train.list_variables(path))
  trained = {split(name, shapes)[0] for name in shapes if is_slot(name, shapes)}
  return sum(math.prod(shapes[name]) for name in trained) or None


def learned(names: Collection[str], variables: Mapping[str, Sequence[int]],
            optimizer: Optimizer | None) -> set[str]:
  """The endings that a user's optimizer gives to its slots; none if it makes no slots.

  The optimizer is asked only if one of the names, which may be those of slots, begins
  like a variable. Variables are given by their shapes, as in `shapes`.
  """
  unknown = [name for name in names if not is_slot(name, variables)]
  asked = {variable: shape for variable, shape in variables.items() if any(
      name.startswith((f"{variable}_", f"{variable}/")) for name in unknown)}
  if optimizer is None or not asked:
    return set()
  try:
    return set().union(*shapes(optimizer, asked).values())
  except Exception as error:  # It is a user's code.
    logging.info("The optimizer's slots are not known: %s: %s",
                 type(error).__name__, error)
    return set()


def shapes(make: Optimizer, variables: Mapping[str, Sequence[int]],
           ) -> dict[str, dict[str, list[int]]]:
  """The shapes of an optimizer's slots, by variable and by the endings of the slots."""
  slots: dict[str, dict[str, list[int]]] = {}
  with tf.Graph().as_default():
    tf.train.create_global_step()
    graph = mtf.Graph()
    mesh, optimizer = mtf.Mesh(graph, "mesh"), make(learning_rate=0.0)
    for name, sizes in variables.items():
      shape = [mtf.Dimension(f"axis_{i}", size) for i, size in enumerate(sizes)]
      value = mtf.get_variable(mesh, name, mtf.Shape(shape))
      before = set(graph.all_variables)
      optimizer.apply_grads([mtf.zeros_like(value)], [value.operation])
      slots[name] = {made.name.removeprefix(name): made.shape.to_integer_list
                     for made in graph.all_variables if made not in before
                     and made.name.startswith(name)}
  return slots
