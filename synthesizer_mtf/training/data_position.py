"""Restarts that go on with the data where they stood.

Beside the last checkpoints model.ckpt-STEP the state of the input pipeline is saved as
input.ckpt-STEP: which examples were read, what waits in buffers to be shuffled,
packed and batched, and the random numbers that come next. A restart from this very
checkpoint takes it up, with or without a seed. It is written first, so that a
checkpoint that is complete has its own.

Mesh TensorFlow offers two parameters for this. `utils.run.skip_seen_data` reads and
prepares all examples of before once more, which takes as long as that took, and is
right for a run with a seed only. `utils.run.checkpoint_input_pipeline` saves the same
state as here, but takes up the newest, which after a kill is not always that of the
step. Where one of them is bound to True, it has its way.

On TPUs, where the examples are read ahead, nothing of this is done.
"""

from collections.abc import Iterator
import hashlib
import os
import re

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.training import checkpoints
import tensorflow.compat.v1 as tf

_FILE = re.compile(r"input\.ckpt-(\d+)\..*")
_ITERATORS = "iterators"  # TensorFlow's name of the collection.
_DIGEST = "digest"
_KEPT = 2  # The last checkpoint, and the one before, should the last be damaged.
_IGNORE = 1  # State that is not tf.data's own, of which there is none to speak of.


@gin.configurable(module="synthesizer_mtf")
def synthesizer_data(resume: bool = True) -> bool:
  """Whether restarts go on with the data where they stood.

  Args:
    resume: False lets the data begin anew at each start.

  Returns:
    resume; False where Mesh TensorFlow does it.

  Raises:
    ValueError: resume is no boolean.
  """
  checks.check_boolean("synthesizer_data.resume", resume)
  return resume and not any(
      gin_files.bound(f"utils.run.{name}", False) is True
      for name in ("skip_seen_data", "checkpoint_input_pipeline"))


class DataPosition(tf.train.SessionRunHook):
  """Saves where the data stand, and finds the place again."""

  def __init__(self, model_dir: str):
    """Declares the folder of the checkpoints."""
    self._model_dir = model_dir
    self._at_its_place = False
    self._write = None

  def begin(self) -> None:
    iterators = tf.get_collection(_ITERATORS)
    if not iterators or not synthesizer_data():
      return
    self._step = tf.train.get_global_step()
    self._digest = digest(iterators)
    self._path = tf.placeholder(tf.string, [], "input_state_path")
    names = [f"iterator_{i}" for i in range(len(iterators))]
    with tf.device(iterators[0].device):
      states = [tf.raw_ops.SerializeIterator(
          resource_handle=iterator, external_state_policy=_IGNORE)
                for iterator in iterators]
      self._write = tf.raw_ops.SaveV2(
          prefix=self._path, tensor_names=[_DIGEST, *names],
          shape_and_slices=[""] * (1 + len(names)),
          tensors=[tf.constant(self._digest), *states])
      read = tf.raw_ops.RestoreV2(
          prefix=self._path, tensor_names=names,
          shape_and_slices=[""] * len(names), dtypes=[tf.variant] * len(names))
      self._read = tf.group([
          tf.raw_ops.DeserializeIterator(resource_handle=iterator, serialized=state)
          for iterator, state in zip(iterators, read)])

  def after_create_session(
      self, session: tf.Session, coord: tf.train.Coordinator) -> None:
    # Other hooks may initialize the iterators after this one, as they do again
    # when a session is lost.
    self._at_its_place = False

  def before_run(self, run_context: tf.train.SessionRunContext) -> None:
    if not self._at_its_place and self._write is not None:
      self._find(run_context.session)
    self._at_its_place = True

  def save(self, session: tf.Session, step: int) -> None:
    """Writes where the data stand at a step; call it before the model is saved.

    Args:
      session: of the training.
      step: as in the name of the checkpoint.

    Raises:
      tf.errors.OpError: the file cannot be written.
    """
    if self._write is None or not self._at_its_place:
      return
    path = self._of_step(step)
    try:
      session.run(self._write, {self._path: path})
    except tf.errors.OpError as error:
      checkpoints.remove_without_index(path)
      if error.op is not None and error.op.type == "SaveV2":
        raise
      logging.warning(
          "The place in the data cannot be saved, so that restarts begin them "
          "anew: %s", str(error.message).partition("\n")[0])
      self._write = None

  def remove_old(self) -> None:
    """Removes what was saved beside all checkpoints but the last ones.

    What waits to be shuffled can take as much as a model.
    """
    kept = {checkpoints.step_of(path)
            for path in checkpoints.find(self._model_dir)[-_KEPT:]}
    for name in tf.io.gfile.listdir(self._model_dir):
      match = _FILE.fullmatch(name)
      if match and int(match[1]) not in kept:
        tf.io.gfile.remove(os.path.join(self._model_dir, name))

  def _find(self, session):
    step = session.run(self._step)
    path = self._of_step(step)
    if not tf.io.gfile.exists(f"{path}.index"):
      if tf.io.gfile.exists(os.path.join(
          self._model_dir, f"model.ckpt-{step}.index")) and step:
        logging.info("%s is not there: the data begin anew.", path)
      return
    if tf.train.load_checkpoint(path).get_tensor(_DIGEST) != self._digest:
      logging.warning("%s is of other data, lengths or batches: the data begin "
                      "anew.", path)
      return
    try:
      session.run(self._read, {self._path: path})
    except tf.errors.OpError as error:
      logging.warning("%s cannot be used, and the data begin anew: %s", path,
                      str(error.message).partition("\n")[0])
    else:
      logging.info("The data go on where they stood at step %d.", step)

  def _of_step(self, step):
    return os.path.join(self._model_dir, f"input.ckpt-{step}")


def digest(iterators: list[tf.Tensor]) -> bytes:
  """What tells the data of iterators from others: files, texts, steps and shapes.

  Numbers, such as seeds and sizes of buffers, may differ: the state knows its own. So
  may the options of the whole, such as those that the estimator adds.

  Args:
    iterators: resources of initializable iterators, in the default graph.

  Returns:
    hexadecimal digits.
  """
  graph = tf.get_default_graph().as_graph_def()
  functions = {f.signature.name: f.node_def for f in graph.library.function}
  nodes = {node.name: node for node in graph.node}
  shapes = [str(i.op.node_def.attr["output_shapes"]).encode() for i in iterators]
  makers = [op.name for i in iterators for op in i.consumers()
            if op.type == "MakeIterator"]
  options = {name for maker in makers for name in _inputs(nodes[maker])
             if nodes[name].op == "OptionsDataset"}
  counted = [node for node in _ancestors(makers, nodes) if node.name not in options]
  found = sorted([*shapes, *_contents(counted, functions, set())])
  return hashlib.sha256(b"\0".join(found)).hexdigest().encode()


def _ancestors(names, nodes):
  """The nodes of these names and all that they take inputs from."""
  found, pending = {}, list(names)
  while pending:
    name = pending.pop()
    if name not in found:
      found[name] = nodes[name]
      pending += _inputs(nodes[name])
  return found.values()


def _inputs(node):
  """The names of the nodes that a node takes inputs from."""
  return [name.lstrip("^").partition(":")[0] for name in node.input]


def _contents(nodes, functions, seen) -> Iterator[bytes]:
  """Yields the operations and texts of nodes, and of the functions they call."""
  for node in nodes:
    yield node.op.encode()
    for value in node.attr.values():
      yield from value.tensor.string_val
      for function in [value.func, *value.list.func]:
        if function.name in functions and function.name not in seen:
          seen.add(function.name)
          yield from _contents(functions[function.name], functions, seen)
