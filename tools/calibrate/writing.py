"""The folder of a calibrated model: its checkpoint and operative_config.gin."""

from collections.abc import Iterator
from collections.abc import Mapping
import os

import gin
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
import tensorflow.compat.v1 as tf


def write(path: str, output: str, graph: reading.Graph,
          variables: Mapping[str, np.ndarray]) -> None:
  """Writes the model that gin describes.

  All variables but the new ones are those of the checkpoint, bit for bit, with what the
  optimizer has collected for them. For the new ones it begins with zeros.

  Args:
    path: the path of the checkpoint of the model with V.
    output: a folder that is new or empty.
    graph: the new model.
    variables: the new variables by name.

  Raises:
    ValueError: the folder is not empty, or cannot be written.
  """
  with folders.new(output) as folder:
    checkpoint_writer.write(
        str(folder), os.path.basename(path), _values(path, graph, variables))
    (folder / folders.OPERATIVE).write_text(
        f"import synthesizer_mtf\n\n{gin.config_str(max_line_length=88)}",
        encoding="utf-8")
    record = os.path.join(os.path.dirname(path), vocabulary_record.NAME)
    if tf.io.gfile.exists(record):
      tf.io.gfile.copy(record, str(folder / vocabulary_record.NAME))


def _values(path, graph, variables) -> Iterator[tuple[str, np.ndarray]]:
  reader = tf.train.load_checkpoint(path)
  saved = reading.names_in(path, graph.shapes)
  dtype = _dtype(reader, [saved[name] for name in graph.trained])
  for name, shape in graph.shapes.items():
    if name not in variables:
      yield name, np.asarray(reader.get_tensor(saved[name]))
      continue
    value = np.asarray(variables[name])
    if list(value.shape) != shape:
      raise checks.Error(
          f"the new variable {name!r} has shape {list(value.shape)}, but the model has "
          f"it in {shape}.")
    yield name, value.astype(dtype)
  yield from _slots(reader, graph, saved)


def _dtype(reader, names):
  """The dtype of a model's variables."""
  types = reader.get_variable_to_dtype_map()
  return next(types[name].as_numpy_dtype for name in names if name in types)


def _slots(reader, graph, saved):
  """Yields the optimizer's slots, so that the folder can be trained on."""
  optimizer = gin_files.bound("utils.run.optimizer", None)
  if optimizer is None:
    return
  saved_shapes = reader.get_variable_to_shape_map()
  for name, slots in optimizer_slots.shapes(
      optimizer, {name: graph.shapes[name] for name in graph.trained}).items():
    for ending, shape in slots.items():
      old = saved[name] + ending
      yield name + ending, (
          np.asarray(reader.get_tensor(old)) if saved_shapes.get(old) == shape
          else np.zeros(shape, np.float32))
