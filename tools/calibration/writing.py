"""The folder of a calibrated model: its checkpoint and operative_config.gin."""

from collections.abc import Iterator
from collections.abc import Mapping
import os

import gin
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools import checkpoint_writer
from synthesizer_mtf.tools.calibration import reading
from synthesizer_mtf.tools.hugging_face_bridge import folders
from synthesizer_mtf.trainer import optimizer_slots
from synthesizer_mtf.trainer import vocabulary_record
import tensorflow.compat.v1 as tf

_CONFIG = "operative_config.gin"


def write(path: str, output: str, shapes: Mapping[str, list[int]],
          variables: Mapping[str, np.ndarray]) -> None:
  """Writes the model that gin describes.

  All variables but the new ones are those of the checkpoint, bit for bit. What the
  optimizer has collected is left out, as most of it belongs to the old attention.

  Args:
    path: the path of the checkpoint of the model with V.
    output: a folder that is new or empty.
    shapes: `reading.Graph.shapes` of the new model.
    variables: the new variables by name.

  Raises:
    ValueError: the folder is not empty, or cannot be written.
  """
  with folders.new(output) as folder:
    checkpoint_writer.write(
        str(folder), os.path.basename(path), _values(path, shapes, variables))
    (folder / _CONFIG).write_text(
        f"import synthesizer_mtf\n\n{gin.config_str(max_line_length=88)}",
        encoding="utf-8")
    record = os.path.join(os.path.dirname(path), vocabulary_record.NAME)
    if tf.io.gfile.exists(record):
      tf.io.gfile.copy(record, str(folder / vocabulary_record.NAME))


def _values(path, shapes, variables) -> Iterator[tuple[str, np.ndarray]]:
  reader = tf.train.load_checkpoint(path)
  saved = reading.names_in(path, shapes)
  types = {name: dtype.as_numpy_dtype
           for name, dtype in reader.get_variable_to_dtype_map().items()
           if not optimizer_slots.is_slot(name, saved.values()) and dtype.is_floating}
  for name, shape in shapes.items():
    if name not in variables:
      yield name, np.asarray(reader.get_tensor(saved[name]))
      continue
    value = variables[name]
    if list(np.shape(value)) != list(shape):
      raise checks.Error(
          f"the new variable {name!r} has shape {list(np.shape(value))}, but the model "
          f"has it in {list(shape)}.")
    # All variables of a model have one dtype.
    yield name, np.asarray(value).astype(next(iter(types.values())))
