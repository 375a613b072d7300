r"""Trains a SentencePiece vocabulary on one's own text, with the ids of T5.

  python -m synthesizer_mtf.tools.train_vocabulary --input='/data/*.txt.gz' \
    --vocab_size=32000 --output=/data/spm.model

It reads the same files as the tasks: plain text, one document per line; pairs in
columns (`.tsv`), of which it uses both sides; and JSON lines (`.jsonl`, `.json`), CSV
with a header (`.csv`) and Parquet (`.parquet`), with either "inputs" and "targets" or
"text". `--text_key` names another key, or several in braces, as "{question} {answer}".
Padding is 0, the end of a sequence 1, unknown 2. The model lacks T5's 100 sentinels,
because the tasks add them. Name the result in gin:

  synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "/data/spm.model"
"""

from collections.abc import Iterable
import io
import itertools
import os
import re
import sys

import sentencepiece
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.tasks import records
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.trainer.watching import messages
import tensorflow as tf
import tqdm

MODEL_TYPES = ("unigram", "bpe", "char", "word")

# SentencePiece drops lines longer than 4192 bytes. A character has at most 4 bytes.
_MAX_CHARACTERS = 1000

# SentencePiece refuses to train with a lower coverage.
_MIN_COVERAGE = 0.98
_MIN_SAMPLE = 101


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
    paths: a list of strings.
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


def main(argv: list[str] | None = None) -> None:
  """Parses flags, trains, and writes the model."""
  args = _parser().parse_args(argv)
  with messages.ending("train_vocabulary"):
    _check(args)
    paths = text_source.find_files("--input", args.input)
    model = train(read(paths, args.text_key), args.vocab_size, args.model_type,
                  args.character_coverage, args.sample_lines,
                  verbose=not args.quiet)
    with tf.io.gfile.GFile(args.output, "wb") as f:
      f.write(model)
  size = sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size()
  print(f"Wrote {args.output}: {size:,} pieces. Name it in gin:\n"
        "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
        f"{os.path.abspath(args.output)!r}")


def _check(args):
  """Raises a ValueError before the text is read."""
  if not _MIN_COVERAGE <= args.character_coverage <= 1:
    raise checks.Error(f"--character_coverage is {args.character_coverage}; give "
                       f"{_MIN_COVERAGE} to 1, the share of characters to cover.")
  if args.vocab_size < 4:
    raise checks.Error(f"--vocab_size is {args.vocab_size}; give 4 or more, as "
                       "padding, end, unknown and the space take 4.")
  if args.sample_lines and args.sample_lines < _MIN_SAMPLE:
    raise checks.Error(f"--sample_lines is {args.sample_lines}; give "
                       f"{_MIN_SAMPLE} or more, or 0 for all.")
  if tf.io.gfile.isdir(args.output):
    raise checks.Error(f"--output is {args.output!r}, a folder; name a file in "
                       "it, as spm.model.")
  if tf.io.gfile.exists(args.output) and not args.overwrite:
    raise checks.Error(f"--output is {args.output!r}, which exists already; name "
                       "another file, or add --overwrite.")
  tf.io.gfile.makedirs(os.path.dirname(args.output) or ".")


def _parser():
  parser = arguments.parser("train_vocabulary", __doc__)
  add = parser.add_argument
  add("--input", nargs="+", required=True, metavar="GLOB",
      help="text files; .gz works")
  add("--output", required=True, metavar="FILE", help="the model to write")
  add("--text_key", default="text", metavar="KEY",
      type=lambda key: None if key == "None" else key,
      help="the key of the text in JSON lines (default: %(default)s); None reads them "
      "as plain text")
  add("--vocab_size", type=int, default=32000, help="pieces (default: T5's "
      "%(default)s)")
  add("--model_type", choices=MODEL_TYPES, default="unigram",
      help="default: %(default)s, as T5's")
  add("--character_coverage", type=float, default=0.9995, metavar="SHARE",
      help="the share of characters that get pieces; 1 for small alphabets (default: "
      "%(default)s)")
  add("--sample_lines", type=int, default=0, metavar="N",
      help="train on N lines chosen at random; memory and time grow with the text "
      "(default: all)")
  add("--overwrite", action="store_true", help="replace an existing --output")
  add("--quiet", action="store_true", help="without SentencePiece's log")
  return parser


if __name__ == "__main__":
  main()
