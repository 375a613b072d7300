"""Trains SentencePiece vocabularies with the ids of T5, and reads their texts."""

from collections.abc import Iterable
import io
import itertools
import re
import sys

import sentencepiece
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.tasks import records
from synthesizer_mtf.tasks import text_source
import tqdm

MODEL_TYPES = ("unigram", "bpe", "char", "word")

# SentencePiece drops lines longer than 4192 bytes. A character has at most 4 bytes.
_MAX_CHARACTERS = 1000

# SentencePiece refuses to train with a lower coverage.
MIN_COVERAGE = 0.98
MIN_SAMPLE = 101


def train(lines: Iterable[str], vocab_size: int, model_type: str = "unigram",
          character_coverage: float = 0.9995, sample_lines: int = 0,
          verbose: bool = False) -> bytes:
  """Trains a vocabulary.

  Args:
    lines: an iterable of strings; longer ones are split at spaces.
    vocab_size: the number of pieces, an integer.
    model_type: one of `MODEL_TYPES`.
    character_coverage: the share of the text's characters to have pieces for;
      rarer ones become unknown.
    sample_lines: the number of lines to train on, chosen at random, at least 101; 0 for
      all lines.
    verbose: whether SentencePiece writes its log to standard error.

  Returns:
    the model as bytes. They are the same on every machine, because the seed is fixed
    and there is only one thread. (The result depends on the number of threads.)

  Raises:
    ValueError: the text does not suit the parameters.
    Exception: any exception that `lines` raises.
  """
  # The model stays in memory, because a model in a file contains the file's name.
  model, raised = io.BytesIO(), []
  sentencepiece.set_random_generator_seed(0)
  try:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_short_lines(_keep_error(lines, raised)),
        model_writer=model,
        vocab_size=vocab_size, model_type=model_type,
        character_coverage=character_coverage, input_sentence_size=sample_lines,
        num_threads=1, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=0 if verbose else 2)
  except RuntimeError as error:
    if not raised:
      raise checks.Error(_explain(str(error), vocab_size)) from error
  if raised:
    raise raised[0]
  return model.getvalue()


def _keep_error(lines, raised):
  """Yields lines; keeps an exception, which SentencePiece would take for the end."""
  try:
    yield from lines
  except Exception as error:
    raised.append(error)


def _explain(message, vocab_size):
  """Returns SentencePiece's message in terms of our flags."""
  most = re.search(r"size too high.* value <= ([0-9]+)", message)
  if most:
    return (f"--vocab_size is {vocab_size}, but this text yields no more than "
            f"{most[1]} pieces; ask for fewer, or give more text.")
  least = re.search(r"than required_chars\. [0-9]+ vs ([0-9]+)", message)
  if least:
    return (f"--vocab_size is {vocab_size}, but the characters of this text "
            f"alone take {least[1]}; ask for more, or lower "
            "--character_coverage.")
  if "sentences_.empty()" in message:
    return "there is no text to train on."
  return f"SentencePiece stopped: {message}"


def _short_lines(lines):
  """Yields lines in pieces that SentencePiece accepts, cut at spaces if possible."""
  for line in lines:
    start = 0
    while len(line) - start > _MAX_CHARACTERS:
      end = line.rfind(" ", start + 1, start + _MAX_CHARACTERS)
      end = end if end > 0 else start + _MAX_CHARACTERS
      yield line[start:end]
      start = end
    yield line[start:]


def read(paths: list[str], text_key: str | None = "text") -> Iterable[str]:
  """Checks files, then returns an iterator over their texts.

  Files are read twice, so that a bad line is found before the training.

  Args:
    text_key: the key of the text in rows with named fields that are not pairs; None to
      read lines as plain text.

  Raises:
    ValueError: a file or line is not what its name says.
  """
  examples = blank = characters = 0
  for lines in map(text_source.Lines, paths):
    for text in _with_bar(_texts(lines, text_key), f"Checking {lines.path}"):
      examples, characters = examples + 1, characters + len(text)
    blank += lines.blank
  print(f"{examples:,} texts, {characters:,} characters, in {len(paths)} "
        f"files; {blank:,} blank lines skipped. After reading, training takes "
        "a while.", file=sys.stderr)
  return _with_bar(
      (text for path in paths
       for text in _texts(text_source.Lines(path), text_key)),
      "Reading", examples)


def _with_bar(texts, title, total=None):
  return tqdm.tqdm(texts, title, total, unit=" texts", file=sys.stderr)


def _texts(lines, text_key):
  """Returns an iterable of the texts of a file."""
  if _holds_pairs(lines.path):
    return itertools.chain.from_iterable(own_text.parse_pairs(lines))
  return itertools.chain.from_iterable(
      own_text.parse_text(lines, text_key, "--text_key"))


def _holds_pairs(path):
  """Returns whether a file has columns, or its first row has both fields of a pair."""
  if not records.has_fields(path):
    return path.removesuffix(".gz").endswith(".tsv")
  return records.has_keys(path, own_text.KEYS)
