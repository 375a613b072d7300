"""Grey pictures as sequences of pixels, for classifiers.

A pixel of value v, from 0 to 255, has the id v + 1, because 0 is padding. Pixels come
row by row from the top. (Long Range Arena does not shift the values. Its black pixels
are padding, which its dot products do not see.)
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools

import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import task
import tensorflow.compat.v2 as tf

SIDE = 32  # The width and the height of Long Range Arena's pictures.
VALUES = 256


def ids(picture: tf.Tensor) -> tf.Tensor:
  """Returns the ids of a picture's pixels, <int32>[length=1024].

  Args:
    picture: <uint8>[height=32, width=32, 1 or 3]; 3 channels are made grey.
  """
  grey = tf.image.rgb_to_grayscale(picture) if picture.shape[-1] == 3 else picture
  return tf.reshape(tf.cast(grey, tf.int32), [SIDE * SIDE]) + 1


def check_size(name: str, height: int | None, width: int | None) -> None:
  """Raises a ValueError if a picture has another size.

  Args:
    name: the name of the picture, for the message.
    height: the height of the picture; None if it is not known.
    width: the width of the picture; None if it is not known.
  """
  if {height, width} - {SIDE, None}:
    raise checks.Error(f"{name} is of {height} x {width} pixels, but {SIDE} x {SIDE} "
                       "are needed; name another data set.")


def add(name: str, source: seqio.DataSource,
        read: Callable[[tf.data.Dataset], tf.data.Dataset],
        classes: Sequence[str]) -> None:
  """Registers a task.

  Args:
    name: the name of the task.
    source: a data source.
    read: a preprocessor that gives {"inputs": <int32>[length=1024], "targets": the
      name of a class}.
    classes: the names of the classes.
  """
  labels.add(
      name, source, classes=classes,
      inputs=seqio.Feature(seqio.PassThroughVocabulary(VALUES + 1), add_eos=False),
      preprocessors=[
          read,
          functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
          *task.TOKENIZE[1:]])
