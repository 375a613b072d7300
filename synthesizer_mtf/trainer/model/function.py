"""A part of a graph of TensorFlow, such as a step, as a function of tensors."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow.compat.v1 as tf


def of(results: Sequence[tf.Tensor], inputs: Mapping[str, tf.Tensor],
       updates: Sequence[tf.Operation] = (),
       ) -> Callable[[Mapping[str, tf.Tensor]], list[tf.Tensor]]:
  """A function of features and state.

  Args:
    results: tensors of the graph.
    inputs: placeholders, and handles of variables; by any names.
    updates: operations that run before the function returns.

  Returns:
    a function from other tensors for the `inputs` to the results, for `tf.function`.
  """
  names = {tensor.op.name: name for name, tensor in inputs.items()}
  needed = tf.graph_util.extract_sub_graph(
      results[0].graph.as_graph_def(),
      [op.name for op in (*updates, *(tensor.op for tensor in results))])
  body, read = tf.GraphDef(versions=needed.versions, library=needed.library), set()
  for node in needed.node:
    if node.name not in names:
      read.update(name.partition(":")[0] for name in node.input)
      new = body.node.add()
      new.CopyFrom(node)
      new.device = ""
      new.attr.pop("_class", None)

  def run(values):
    made = tf.import_graph_def(
        body, {f"{op}:0": values[name] for op, name in names.items() if op in read},
        [op.name for op in updates] + [tensor.name for tensor in results], name="")
    with tf.control_dependencies(made[:len(updates)]):
      return [tf.identity(tensor) for tensor in made[len(updates):]]

  return run
