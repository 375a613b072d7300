"""Perplexity per token and per word of a language model.

T5's `perplexity_eval` gives the logarithm of the perplexity per token, which
depends on the vocabulary. Benchmarks of language models count words, and they count the
end of a sentence as a word. With `word_perplexity_eval.gin`, T5's mode
`score_from_dataset` computes both perplexities.
"""

from collections.abc import Callable
from collections.abc import Sequence
import os
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import utils
import numpy as np
from numpy import typing as npt
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import vocabulary as vocabulary_lib
import tensorflow.compat.v1 as tf
import tensorflow_datasets as tfds

_WORD = "\u2581"  # SentencePiece's mark in the first piece of a word.
_EOS = 1  # T5's end of sequence.


@gin.configurable(module="synthesizer_mtf.tasks")
def word_perplexity(
    estimator: tf.estimator.tpu.TPUEstimator,
    input_fn: Callable[[dict[str, Any]], tf.data.Dataset],
    eval_checkpoint_step: int | Sequence[int] | str, model_dir: str,
    vocabulary: seqio.Vocabulary | tuple[seqio.Vocabulary, seqio.Vocabulary],
    score_postprocess_fn: Callable[..., Any] | None = None,
    folder: str = "perplexity", num_examples: int | None = None,
) -> dict[int, dict[str, float]]:
  """Evaluates checkpoints; logs the results and writes them as summaries.

  This function replaces Mesh's `score_with_estimator`, and takes the same arguments.

  Args:
    estimator: a TPUEstimator that predicts "scores", log-likelihoods.
    input_fn: a function from a dict to a tf.data.Dataset of "targets",
      <int>[batch, length], 0 where padded.
    eval_checkpoint_step: an int, a list of ints, or "all"; -1 is the last.
    model_dir: a string.
    vocabulary: a seqio vocabulary, or one for inputs and one for targets.
    score_postprocess_fn: not used.
    folder: a string, the folder in `model_dir` for the summaries.
    num_examples: not used.

  Returns:
    a dict from steps to the dicts that `perplexities` returns.
  """
  del score_postprocess_fn, num_examples
  tokens, words = _count_all(input_fn, utils.targets_vocabulary(vocabulary))
  writer = tf.summary.FileWriter(os.path.join(model_dir, folder))
  results = {}
  for path in utils.get_checkpoint_iterator(eval_checkpoint_step, model_dir):
    step = int(utils.get_step_from_checkpoint_path(path))
    scores = [row["scores"] for row in estimator.predict(
        input_fn, checkpoint_path=path)]
    results[step] = perplexities(scores, tokens, words)
    summary = tf.Summary()
    for name, value in results[step].items():
      summary.value.add(tag=f"eval/{name}", simple_value=value)
      logging.info("eval/%s at step %d: %.3f", name, step, value)
    writer.add_summary(summary, step)
    writer.flush()
  return results


def perplexities(
    scores: npt.ArrayLike, tokens: npt.ArrayLike, words: npt.ArrayLike,
) -> dict[str, float]:
  """Returns a dict with the perplexities, and the numbers they come from.

  Args:
    scores: <float>[examples], the log-likelihood of each example.
    tokens: <int>[examples], the number of tokens; 0 for an example of padding only.
    words: <int>[examples], the number of words, which includes the ends of sequence.

  Raises:
    ValueError: there is no token.
  """
  tokens, words = np.asarray(tokens), np.asarray(words)
  if not tokens.sum():
    raise checks.Error("the examples of this evaluation have no tokens; choose "
                       "another `utils.run.dataset_split`.")
  loss = -np.asarray(scores, np.float64)[tokens > 0].sum()
  return {
      "perplexity_per_token": float(np.exp(loss / tokens.sum())),
      "perplexity_per_word": float(np.exp(loss / words.sum())),
      "tokens": int(tokens.sum()),
      "words": int(words.sum()),
  }


def words_begun(vocabulary: seqio.SentencePieceVocabulary) -> np.ndarray:
  """Returns how many words each id begins, <int>[vocabulary].

  Spaces separate words, and SentencePiece marks the first piece of each word. An end of
  sequence counts as a word. A sentinel does not.
  """
  pieces = map(vocabulary.tokenizer.id_to_piece, range(vocabulary.vocab_size))
  begins = np.array([
      piece.startswith(_WORD) and not vocabulary_lib.SENTINEL.fullmatch(piece)
      for piece in pieces], np.int64)
  begins[_EOS] = 1
  return begins


def count(ids: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (tokens, words) of each example.

  Args:
    ids: <int>[batch, length], 0 where padded.
    begins: <int>[vocabulary], as `words_begun` returns them.

  Returns:
    two <int>[batch].
  """
  return (ids > 0).sum(axis=1), begins[ids].sum(axis=1)


def _count_all(input_fn, vocabulary):
  """Returns the tokens and words of every example, in the estimator's order."""
  begins = words_begun(vocabulary)
  with tf.Graph().as_default():
    counts = [count(batch["targets"], begins)
              for batch in tfds.as_numpy(input_fn({}))]
  return [np.concatenate(arrays) for arrays in zip(*counts)]
