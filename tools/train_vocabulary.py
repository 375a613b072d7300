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

import os

import sentencepiece
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import vocabularies
import tensorflow as tf


def main(argv: list[str] | None = None) -> None:
  """Parses flags, trains, and writes the model."""
  with arguments.command(_parser(), argv) as args:
    _check(args)
    paths = text_source.find_files("--input", args.input)
    model = vocabularies.train(
        vocabularies.read(paths, args.text_key), args.vocab_size, args.model_type,
        args.character_coverage, args.sample_lines, verbose=not args.quiet)
    with tf.io.gfile.GFile(args.output, "wb") as f:
      f.write(model)
    size = sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size()
    print(f"Wrote {args.output}: {size:,} pieces. Name it in gin:\n"
          "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
          f"{os.path.abspath(args.output)!r}")


def _check(args):
  """Raises a ValueError before the text is read."""
  if not vocabularies.MIN_COVERAGE <= args.character_coverage <= 1:
    raise checks.Error(f"--character_coverage is {args.character_coverage}; give "
                       f"{vocabularies.MIN_COVERAGE} to 1, the share of characters to "
                       "cover.")
  if args.vocab_size < 4:
    raise checks.Error(f"--vocab_size is {args.vocab_size}; give 4 or more, as "
                       "padding, end, unknown and the space take 4.")
  if args.sample_lines and args.sample_lines < vocabularies.MIN_SAMPLE:
    raise checks.Error(f"--sample_lines is {args.sample_lines}; give "
                       f"{vocabularies.MIN_SAMPLE} or more, or 0 for all.")
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
  add("--model_type", choices=vocabularies.MODEL_TYPES, default="unigram",
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
