"""Metrics of replies: BLEU-1 and 4, ROUGE-L, CIDEr, METEOR, embedding average.

All metrics are percentages, as in the paper's table of dialogue generation. Its columns
are BLEU-4, ROUGE-L, METEOR and CIDEr (arXiv:2005.00743, Table 3). An earlier version of
the paper also has BLEU-1 and the embedding average. The paper names no implementation.
BLEU, ROUGE-L (F with beta 1.2) and CIDEr are those of pycocoevalcap. Spaces separate
the words, as in PersonaChat's files. METEOR is nltk's. Its weights are not those of the
Java program METEOR 1.5, and it looks stems up in WordNet, so scores of the two programs
are not comparable.

The packages are an extra: pip install '.[dialogue]' in the checkout of this
package. METEOR needs WordNet, and the embedding average needs word vectors in
GloVe's text format:

  synthesizer_mtf.tasks.dialogue_metrics.word_vectors = "/data/glove.6B.txt"
  SYNTHESIZER_MTF_WORD_VECTORS

Without WordNet or word vectors, the metric that needs them is left out, with a warning.
"""

import functools
import importlib
import os

from absl import logging
import gin
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import text_source

_PARAMETER = "synthesizer_mtf.tasks.dialogue_metrics.word_vectors"
_VARIABLE = "SYNTHESIZER_MTF_WORD_VECTORS"


def check() -> None:
  """Checks early that all packages and data of the metrics exist.

  Raises:
    ValueError: a package is not installed, or the named word vectors are missing. If
      only a metric has to be left out, one warning is logged instead.
  """
  for name in ("bleu.bleu", "rouge.rouge", "cider.cider"):
    _package(f"pycocoevalcap.{name}")
  _wordnet()
  _word_vectors_path()


def overlap(targets: list[str], predictions: list[str]) -> dict[str, float]:
  """Returns BLEU-1, BLEU-4, ROUGE-L and CIDEr, which count common n-grams.

  Args:
    targets: a list of strings, words with spaces between them.
    predictions: a list of as many strings.

  Returns:
    a dict from name to float, in percent. CIDEr weighs a word by how few targets have
    it, so it is 0 for a single target.

  Raises:
    ValueError: pycocoevalcap is not installed.
  """
  references = {i: [text] for i, text in enumerate(targets)}
  answers = {i: [text] for i, text in enumerate(predictions)}
  bleu = _package("pycocoevalcap.bleu.bleu").Bleu(4).compute_score(
      references, answers, verbose=0)[0]
  rouge = _package("pycocoevalcap.rouge.rouge").Rouge().compute_score(
      references, answers)[0]
  cider = _package("pycocoevalcap.cider.cider").Cider().compute_score(
      references, answers)[0]
  scores = {"bleu1": bleu[0], "bleu4": bleu[3], "rougeL": rouge, "cider": cider}
  return {name: 100 * float(score) for name, score in scores.items()}


def meteor(targets: list[str], predictions: list[str]) -> dict[str, float]:
  """Returns the mean METEOR, or {} without WordNet; see `overlap`."""
  wordnet = _wordnet()
  if wordnet is None:
    return {}
  score = _package("nltk.translate.meteor_score").single_meteor_score
  return {"meteor": 100 * float(np.mean([
      score(target.split(), prediction.split(), wordnet=wordnet)
      for target, prediction in zip(targets, predictions)]))}


def embedding_average(
    targets: list[str], predictions: list[str],
) -> dict[str, float]:
  """Returns the mean cosine of the mean word vectors; see `overlap`.

  As in nlg-eval, words are those of the Penn Treebank ("do", "n't"), and a word without
  a vector counts as the mean of all vectors. A reply without words scores 0. Without
  word vectors, the function returns {}.
  """
  path = _word_vectors_path()
  if path is None:
    return {}
  tokenize = functools.partial(
      _package("nltk.tokenize").word_tokenize, preserve_line=True)
  pairs = [(tokenize(target), tokenize(prediction))
           for target, prediction in zip(targets, predictions)]
  vectors, unknown = _read_vectors(
      path, {word for pair in pairs for words in pair for word in words})
  missing = sorted({word for pair in pairs for words in pair for word in words
                    if word not in vectors})
  if missing:
    logging.warning("%s has no vector for %d words, which count as its mean: "
                    "%s", path, len(missing), " ".join(missing[:10]))

  def total(words):
    return sum((vectors.get(word, unknown) for word in words),
               np.zeros_like(unknown))

  return {"embedding_average": 100 * float(np.mean([
      _cosine(total(target), total(prediction))
      for target, prediction in pairs]))}


def _cosine(a, b):
  norms = np.linalg.norm(a) * np.linalg.norm(b)
  return a @ b / norms if norms else 0.


def _package(name):
  """Returns a module of the extra's packages."""
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    raise checks.Error(
        f"The metrics of synth_personachat need {name.split('.')[0]}, which is "
        "not installed; install synthesizer-mtf's extra named dialogue, by "
        "pip install '.[dialogue]' in its checkout.") from error


def _wordnet():
  """Returns nltk's WordNet; without its data, warns once and returns None."""
  wordnet = _package("nltk.corpus").wordnet
  try:
    wordnet.synsets("word")
  except LookupError:
    _warn_of_no_wordnet()
    return None
  return wordnet


@functools.cache
def _warn_of_no_wordnet():
  logging.warning(
      "METEOR is left out: nltk finds no WordNet. Get it by python -m nltk.downloader "
      "wordnet, or unpack wordnet.zip into corpora/ in a folder that the environment "
      "variable NLTK_DATA names.")


@gin.configurable("dialogue_metrics", module="synthesizer_mtf.tasks")
def _word_vectors(word_vectors=None):
  """Returns the path that gin binds."""
  return word_vectors


def _word_vectors_path():
  """Returns the path of the word vectors; without one, warns and returns None."""
  value = _word_vectors()
  if value is None and not os.environ.get(_VARIABLE):
    _warn_of_no_vectors()
    return None
  origin, paths = text_source.chosen_globs(_PARAMETER, _VARIABLE, value)
  paths = text_source.find_files(origin, paths)
  if len(paths) > 1:
    raise checks.Error(f"{origin} names {len(paths)} files; name one, in GloVe's "
                       "text format.")
  return paths[0]


@functools.cache
def _warn_of_no_vectors():
  logging.warning(
      "The embedding average is left out: name a file of word vectors in "
      "GloVe's text format by `%s` in gin or by %s in the environment.",
      _PARAMETER, _VARIABLE)


def _read_vectors(path, wanted):
  """Reads a file in GloVe's text format: a word and its numbers on each line.

  A word in the file may contain spaces, as some in glove.840B do; `wanted` has no such
  words. A first line with two numbers, as word2vec writes it, is skipped.

  Args:
    path: a string; the file may be gzip-compressed (`.gz`).
    wanted: a set of words.

  Returns:
    (a dict from the wanted words that the file has to float64 arrays, the mean of all
    vectors of the file).

  Raises:
    ValueError: a line is not a word followed by as many numbers as in the first line.
  """
  lines, vectors, count = text_source.Lines(path), {}, 0
  total = np.zeros(())
  for line in lines:
    parts = line.rstrip().split(" ")
    if lines.number == 1 and len(parts) == 2 and all(map(str.isdecimal, parts)):
      continue
    word, numbers = _word_and_numbers(parts, np.size(total) if count else None)
    try:
      vector = np.array(numbers, np.float64)
    except ValueError:
      raise lines.error("not a word and numbers with single spaces between "
                        "them.") from None
    if not numbers or count and vector.shape != total.shape:
      raise lines.error(f"{len(numbers)} numbers after the word, but "
                        f"{np.size(total) if count else 'at least 1'} needed.")
    total, count = total + vector, count + 1
    if word in wanted:
      vectors[word] = vector
  return vectors, total / count


def _word_and_numbers(parts, size):
  """Returns a row's word and its numbers; `size` is their count, or None at first."""
  begin = len(parts) - size if size else 1
  if begin > 1 and not _is_number(parts[begin - 1]):
    return " ".join(parts[:begin]), parts[begin:]
  return parts[0], parts[1:]


def _is_number(text):
  try:
    float(text)
  except ValueError:
    return False
  return True
