r"""Averages the last checkpoints of a model into a new folder.

  python -m synthesizer_mtf.tools.average_checkpoints MODEL_DIR --last=5 \
    --output=MODEL_DIR.average

The result is a checkpoint like any other: evaluate, decode or export it with
--model_dir=MODEL_DIR.average. It has the step of the last checkpoint. MODEL_DIR has to
hold `--last` checkpoints. Mesh TensorFlow keeps `utils.run.keep_checkpoint_max`, by
default 10, and the laptop recipes keep 2. Checkpoints that were left, by going back to
an older one, do not count.

(T5's own script adds up in the variables' dtype. Mesh saves bfloat16, which has 8 exact
bits.)
"""

from collections.abc import Iterator
from collections.abc import Sequence
import os

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
import tensorflow.compat.v1 as tf
import tqdm

# The files that belong to the model, besides its checkpoints.
_OF_THE_MODEL = ("operative_config.gin", vocabulary_record.NAME)


def average(model_dir: str, last: int, output: str) -> str:
  """Writes the mean of the last checkpoints.

  The mean is computed in float64 and rounded once, to the variable's type. Variables
  that are not floating-point, such as the step, come from the last checkpoint.

  Args:
    model_dir: the folder of the checkpoints.
    last: the number of checkpoints to average.
    output: a folder that is new or empty.

  Returns:
    the path of the new checkpoint.

  Raises:
    ValueError: there are too few checkpoints, one is damaged or of another model, or
      the output folder is not empty.
  """
  paths = branches.branch(model_dir)[-last:]
  if len(paths) < last:
    raise checks.Error(
        f"{model_dir!r} has {len(paths)} checkpoints{_left(model_dir, paths)}, but "
        f"--last is {last}; lower it, or train with a larger "
        "`utils.run.keep_checkpoint_max`.")
  if tf.io.gfile.isdir(output) and tf.io.gfile.listdir(output):
    raise checks.Error(
        f"--output is {output!r}, which is not empty; name a new folder.")
  for path in paths:
    complete.check(path)
  _check_alike(paths)
  unfinished = output.rstrip("/") + ".unfinished"
  if tf.io.gfile.isdir(unfinished):
    tf.io.gfile.rmtree(unfinished)
  tf.io.gfile.makedirs(unfinished)
  name = os.path.basename(paths[-1])
  checkpoint_writer.write(unfinished, name, _means(paths))
  for file in _OF_THE_MODEL:
    if tf.io.gfile.exists(os.path.join(model_dir, file)):
      tf.io.gfile.copy(os.path.join(model_dir, file), os.path.join(unfinished, file))
  if tf.io.gfile.isdir(output):
    tf.io.gfile.rmtree(output)
  tf.io.gfile.rename(unfinished, output)
  return os.path.join(output, name)


def _left(model_dir, paths):
  """Names the checkpoints that were left by going back; "" if there are none."""
  left = [os.path.basename(path) for path in complete.find(model_dir)
          if path not in paths]
  return f" that led to the last ({', '.join(left)} did not)" if left else ""


def _check_alike(paths):
  *others, newest = (tf.train.load_checkpoint(path) for path in paths)
  shapes = newest.get_variable_to_shape_map()
  for path, other in zip(paths, others):
    others_shapes = other.get_variable_to_shape_map()
    differing = sorted(name for name in {**shapes, **others_shapes}
                       if shapes.get(name) != others_shapes.get(name))
    if differing:
      raise checks.Error(
          f"{path} and {paths[-1]} are of different models: {len(differing)} variables "
          f"differ, such as {differing[0]}; lower --last, or move one away.")


def _means(paths) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (the name of a variable, its mean in its own type)."""
  readers = [tf.train.load_checkpoint(path) for path in paths]
  types = readers[-1].get_variable_to_dtype_map()
  for name in tqdm.tqdm(sorted(types), desc="variables", disable=None):
    if not types[name].is_floating:
      yield name, np.asarray(readers[-1].get_tensor(name))
      continue
    total = sum(reader.get_tensor(name).astype(np.float64) for reader in readers)
    yield name, np.asarray(total / len(readers)).astype(types[name].as_numpy_dtype)


def _parser():
  parser = arguments.parser("average_checkpoints", __doc__)
  parser.add_argument("model_dir", metavar="MODEL_DIR")
  parser.add_argument("--last", type=arguments.positive, default=5, metavar="N",
                      help="how many (default: %(default)s)")
  parser.add_argument("--output", required=True, metavar="FOLDER",
                      help="a new folder, for the result")
  return parser


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the checkpoint."""
  with arguments.command(_parser(), argv) as args:
    path = average(args.model_dir, args.last, args.output)
    print(f"The mean of {args.last} checkpoints is {path}")


if __name__ == "__main__":
  main()
