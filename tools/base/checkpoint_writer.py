"""Writes checkpoints as Mesh TensorFlow's trainer does, with little memory."""

from collections.abc import Iterable
import os

import numpy as np
from synthesizer_mtf.trainer.checkpoints import model_folder
import tensorflow.compat.v1 as tf

# The most bytes of variables in memory at once, unless one variable is larger.
_BYTES_AT_ONCE = 64 * 2**20


def write(folder: str, name: str,
          variables: Iterable[tuple[str, np.ndarray | np.number]]) -> None:
  """Writes a checkpoint, and the file `checkpoint` that names it.

  Args:
    folder: an existing folder.
    name: the name of the checkpoint, such as "model.ckpt-0".
    variables: pairs of a name and a value, which are taken one at a time.
  """
  path = os.path.join(folder, name)
  parts, held = [], {}
  for variable, value in variables:
    if held and sum(v.nbytes for v in held.values()) + value.nbytes > _BYTES_AT_ONCE:
      parts.append(_save(path, len(parts), held))
      held = {}
    held[variable] = value
  parts.append(_save(path, len(parts), held))
  with tf.Graph().as_default(), tf.Session() as session:
    # This operation renames the data files and joins their indices.
    session.run(tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=path, delete_old_dirs=True))
  model_folder.write_state(folder, [name])


def _save(path, number, variables):
  """Writes some variables; returns the prefix of their files."""
  prefix = os.path.join(f"{path}_temp", f"part-{number:05d}")
  with tf.Graph().as_default(), tf.Session() as session:
    fed = [tf.placeholder(np.asarray(v).dtype, np.shape(v))
           for v in variables.values()]
    session.run(
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(variables),
            shape_and_slices=[""] * len(fed), tensors=fed),
        dict(zip(fed, variables.values())))
  return prefix
