"""Checkpoints as Mesh TensorFlow's trainer writes them, with little memory."""

from collections.abc import Iterable
import os

import numpy as np
import tensorflow.compat.v1 as tf

NAME = "model.ckpt-0"

# Of the variables that are held in memory at once, unless one is larger.
_BYTES_AT_ONCE = 64 * 2**20


def write(folder: str, variables: Iterable[tuple[str, np.ndarray]]) -> None:
  """Writes a checkpoint of step 0, without what an optimizer keeps.

  Args:
    folder: an existing one.
    variables: pairs of a name and its value, which are taken one at a time.
  """
  parts, held = [], {"global_step": np.int64(0)}
  for name, value in variables:
    if sum(v.nbytes for v in held.values()) + value.nbytes > _BYTES_AT_ONCE:
      parts.append(_save(folder, len(parts), held))
      held = {}
    held[name] = value
  parts.append(_save(folder, len(parts), held))
  with tf.Graph().as_default(), tf.Session() as session:
    # It renames the data files, and joins their indices.
    session.run(tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts,
        destination_prefix=os.path.join(folder, NAME), delete_old_dirs=True))
  tf.train.update_checkpoint_state(folder, NAME, [NAME])


def _save(folder, number, variables):
  """Writes some variables; returns the prefix of their files."""
  prefix = os.path.join(folder, f"{NAME}_temp", f"part-{number:05d}")
  with tf.Graph().as_default(), tf.Session() as session:
    fed = [tf.placeholder(np.asarray(v).dtype, np.shape(v))
           for v in variables.values()]
    session.run(
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(variables),
            shape_and_slices=[""] * len(fed), tensors=fed),
        dict(zip(fed, variables.values())))
  return prefix
