"""Answers to texts in Python: a graph and a checkpoint that stay between calls."""

from collections.abc import Sequence
from typing import Any

from mesh_tensorflow.transformer import utils
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import estimators
import tensorflow.compat.v1 as tf

# A text, or a dict of several answers, as in the files of `answers`.
Answer = str | dict[str, Any]


class Texts:
  """Answers text after text with one checkpoint; `close` frees its memory."""

  def __init__(self, estimator: estimators.CarefulEstimator, path: str, vocabulary: Any,
               model_type: str, shape: tuple[int, int], repeats: int = 1) -> None:
    """Builds the graph, and restores a checkpoint; gin counts only here.

    Args:
      estimator: the model.
      path: the path of the checkpoint.
      vocabulary: a vocabulary, or a tuple of those of the inputs and the targets.
      model_type: of `utils.run`.
      shape: the number of texts in a batch, and the length of the inputs.
      repeats: how often to answer each text.

    Raises:
      ValueError: the checkpoint does not fit, or a TPU would answer.
    """
    if not estimator.is_on_cpus():
      raise checks.Error("`tpu` is given, but only a file of texts can be predicted on "
                         "a TPU; write the texts into a file, one in each line.")
    self._vocabulary, self._model_type = vocabulary, model_type
    self._shape, self._repeats = shape, repeats
    self.close = estimator.close
    self._is_several = answers.bound() is not None
    with answers.asking(answers.bound()):
      self._predict = estimator.staying(
          {"inputs": tf.TensorSpec(shape, tf.int32, "inputs")}, path)

  def __call__(self, texts: Sequence[str]) -> list[Answer]:
    """Returns the answer to each text; a dict of them if gin asks for several."""
    texts = [text for text in texts for _ in range(self._repeats)]
    if not texts:
      return []
    size, length = self._shape
    ids = utils.encode_inputs(
        texts, self._vocabulary, self._model_type, size, length)  # [texts, length]
    batches = ({"inputs": rows} for rows in np.split(ids, len(ids) // size))
    vocabulary = utils.targets_vocabulary(self._vocabulary)
    read = answers.several if self._is_several else answers.text
    return [read(example, vocabulary) for example in self._predict(batches, len(texts))
            ][:len(texts)]
