"""Metrics of replies: BLEU-1 and 4, ROUGE-L, CIDEr, METEOR, embedding average.

All are percentages, as in the paper's table of dialogue generation: BLEU-4,
ROUGE-L, METEOR and CIDEr (arXiv:2005.00743, Table 3), and in an earlier version
BLEU-1 and the embedding average too. The paper names no implementation. BLEU,
ROUGE-L (F with beta 1.2) and CIDEr are those of pycocoevalcap, on words between
spaces, which is how PersonaChat's files separate them. METEOR is nltk's: its
weights are not those of the Java program METEOR 1.5, and it looks up stems in
WordNet. The two are not comparable.

The packages are an extra: pip install '.[dialogue]' in the checkout of this
package. METEOR needs WordNet, and the embedding average needs word vectors in
GloVe's text format:

  synthesizer_mtf.tasks.dialogue_metrics.word_vectors = "/data/glove.6B.txt"
  SYNTHESIZER_MTF_WORD_VECTORS

Without them these two are left out, and a warning says so.
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
  """Looks for everything that the metrics need, before it is needed.

  Raises:
    ValueError: a package is not installed, or the named word vectors are not
      there. What only leaves a metric out is a warning, once.
  """
  for name in ("bleu.bleu", "rouge.rouge", "cider.cider"):
    _package(f"pycocoevalcap.{name}")
  _wordnet()
  _word_vectors_path()


def overlap(targets: list[str], predictions: list[str]) -> dict[str, float]:
  """Returns BLEU-1, BLEU-4, ROUGE-L and CIDEr, which count common n-grams.

  Args:
    targets: a list of strings, words with spaces between them.
    predictions: a list of strings, as many.

  Returns:
    a dict from name to float, in percent. CIDEr weighs words by how few of the
    targets have them, so that it is 0 for a single target.

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
  """Returns the mean METEOR; see `overlap`. Without WordNet, nothing."""
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

  As nlg-eval has it: words are those of the Penn Treebank ("do", "n't"), and
  one without a vector counts as the mean of all vectors. A reply without words
  scores 0. Without word vectors, returns nothing.
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


@functools.cache
def _wordnet():
  """Returns nltk's WordNet, or None, with one warning, without its data."""
  wordnet = _package("nltk.corpus").wordnet
  try:
    wordnet.synsets("word")
  except LookupError:
    logging.warning(
        "METEOR is left out: nltk finds no WordNet. Get it by python -m "
        "nltk.downloader wordnet, or unpack wordnet.zip into corpora/ in a "
        "folder that the environment variable NLTK_DATA names.")
    return None
  return wordnet


@gin.configurable("dialogue_metrics", module="synthesizer_mtf.tasks")
def _word_vectors(word_vectors=None):
  """Returns what gin binds."""
  return word_vectors


def _word_vectors_path():
  """Returns the path of the word vectors, or None, with a warning."""
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

  A word may have spaces in it, as some of glove.840B have; of those none is wanted.
  A first line with two numbers, as word2vec writes it, is passed over.

  Args:
    path: a string; `.gz` works.
    wanted: a set of words.

  Returns:
    (a dict from those of the words that are there to float64 arrays, the mean
    of all vectors of the file).

  Raises:
    ValueError: a line is not a word and as many numbers as the first one has.
  """
  lines, found, total, count = text_source.Lines(path), {}, 0., 0
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
      found[word] = vector
  return found, total / count


def _word_and_numbers(parts, size):
  """The word of a row and its numbers; size is how many, None if not known yet."""
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
