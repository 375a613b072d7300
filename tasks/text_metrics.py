"""Metrics of texts in any language: BLEU and ROUGE whose words fit the targets.

T5's ROUGE drops all letters but a to z, so that equal Russian texts have a score of 0.
Its BLEU takes a Chinese sentence for one word. The metrics here are T5's for texts that
T5 reads as they are. For other targets they find words in another way, and say so once.
Only the targets decide, so all models are compared by the same words.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import itertools
import unicodedata

from absl import logging
from synthesizer_mtf.tasks import summarization
from t5.evaluation import metrics

Metric = Callable[[list[str], list[str]], dict[str, float]]

# How Unicode names the letters of scripts without spaces between words.
_UNSPACED = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI",
             "LAO", "KHMER", "MYANMAR")
_MOSTLY = .8  # The share of Chinese characters in Chinese; Japanese has half of it.


def bleu(targets: list[str], predictions: list[str]) -> dict[str, float]:
  """Returns T5's BLEU; sacrebleu's words are Chinese, or characters, if need be."""
  tokenizer = "intl"
  if is_unspaced(targets):
    letters = [letter for letter in _letters(targets) if _stands_alone(letter)]
    chinese = sum(unicodedata.name(letter).startswith("CJK") for letter in letters)
    tokenizer = "zh" if chinese > _MOSTLY * len(letters) else "char"
    _say(f"`bleu` uses sacrebleu's tokenizer {tokenizer!r}, not T5's 'intl', as most "
         "of the targets have no spaces between words.")
  scores = metrics.bleu(targets, predictions, tokenizer=tokenizer)
  if not scores["bleu"] and any(map(str.__eq__, targets, predictions)):
    _say("`bleu` is 0 although some targets are met exactly: it compares runs of up to "
         "four words, and these targets have fewer; `sequence_accuracy` counts them.")
  return scores


def rouge(targets: list[str], predictions: list[str]) -> dict[str, float]:
  """Returns ROUGE as `summarization.rouge`, of words that have all letters."""
  if all(letter.isascii() for letter in _letters(targets)):
    return summarization.rouge(targets, predictions)
  _say("`rouge` compares words of all letters, as the targets have others than a to z, "
       "which T5's drops; in scripts without spaces each character is a word.")
  return summarization.rouge(targets, predictions, tokenizer=Words())


def by_spaces(metric: Metric) -> Metric:
  """Makes a metric that finds words by spaces say once if the targets have none."""
  @functools.wraps(metric)
  def saying(targets, predictions):
    if is_unspaced(targets):
      _say(f"`{metric.__name__}` finds words by spaces, but most of the targets have "
           "none, so that it compares whole phrases; `bleu` and `rouge` do not.")
    return metric(targets, predictions)

  return saying


class Words:
  """A tokenizer for `rouge_score`: lowercase words of letters, marks and digits."""

  def tokenize(self, text: str) -> list[str]:
    """Returns the words; those of ASCII are the same as rouge_score's own."""
    words: list[str] = []
    goes_on = is_open = False  # Whether a mark, or also a letter, continues a word.
    for character in unicodedata.normalize("NFKC", text).lower():
      category = unicodedata.category(character)[0]
      if category not in "LMN":
        goes_on = is_open = False
        continue
      is_alone = _stands_alone(character)
      if goes_on and (category == "M" or (is_open and not is_alone)):
        words[-1] += character
      else:
        words.append(character)
        is_open = not is_alone
      goes_on = True
    return words


def is_unspaced(texts: Sequence[str]) -> bool:
  """Whether most letters are of scripts without spaces between words."""
  letters = list(_letters(texts))
  return 2 * sum(map(_stands_alone, letters)) > len(letters)


def _letters(texts: Sequence[str]) -> Iterator[str]:
  return filter(str.isalnum, itertools.chain.from_iterable(texts))


@functools.cache
def _stands_alone(character: str) -> bool:
  """Whether a letter is of a script without spaces between words."""
  return unicodedata.name(character, "").startswith(_UNSPACED)


@functools.cache
def _say(sentence: str) -> None:
  """Warns once of the words of a metric."""
  logging.warning("%s", sentence)
