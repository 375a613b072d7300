"""Makes what the studies of `reproduce --study` train on, from files of JSON lines.

  python -m studies.prepare SOURCES OUTPUT

SOURCES holds, for each split, objects with the keys in brackets; labels are 0 or 1:

  wikitext2-{train,validation}.jsonl.gz (text), brown-{train,test}.jsonl.gz (text),
  boolq-{train,validation}.jsonl.gz (question, passage, label),
  rotten_tomatoes-{train,validation}.jsonl.gz (sentence, label),
  libreoffice-de-en-{train,validation}.jsonl.gz (en, de)

The command writes to OUTPUT: pairs in columns, the text of `make demo`, a vocabulary of
all texts, and `data.gin`. This file names the others for `reproduce --study=NAME
--gin_file=OUTPUT/data.gin`.
"""

from collections.abc import Callable
from collections.abc import Iterator
import json
import pathlib

from synthesizer_mtf import checks
from synthesizer_mtf.tasks import english
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import vocabularies

_TEXTS = {"WIKITEXT_TRAIN": "wikitext2-train", "BROWN_TRAIN": "brown-train",
          "WIKITEXT_VALIDATION": "wikitext2-validation",
          "BROWN_VALIDATION": "brown-test"}


def _boolq(row):
  return (f"boolq question: {row['question']} passage: {row['passage']}",
          ("False", "True")[row["label"]])


def _rotten_tomatoes(row):
  return (f"rotten tomatoes sentence: {row['sentence']}",
          ("negative", "positive")[row["label"]])


def _libreoffice(row):
  return f"translate English to German: {row['en']}", row["de"]


# From the name of a source to a function that makes (inputs, targets) from a row. The
# words in front of the inputs are T5's.
_PAIRS: dict[str, Callable[[dict], tuple[str, str]]] = {
    "boolq": _boolq, "rotten_tomatoes": _rotten_tomatoes,
    "libreoffice-de-en": _libreoffice}


def prepare(sources: pathlib.Path, output: pathlib.Path,
            vocabulary_size: int) -> pathlib.Path:
  """Writes all files of the studies; returns the path of data.gin.

  Args:
    sources: the folder of the source files that the module's docstring lists.
    output: a folder, which is made.
    vocabulary_size: the size of the vocabulary in pieces.

  Raises:
    ValueError: a file is missing, or one of its lines has the wrong format.
  """
  macros = {macro: _source(sources, name) for macro, name in _TEXTS.items()}
  pairs = {(name, split): list(_pairs(_source(sources, f"{name}-{split}"), pair))
           for name, pair in _PAIRS.items() for split in ("train", "validation")}
  output.mkdir(parents=True, exist_ok=True)
  for split, texts in zip(("train", "validation"), english.split()):
    macros[f"DEMO_{split.upper()}"] = _write(output / f"demo.{split}.txt", texts)
  for (name, split), rows in pairs.items():
    name = name.partition("-")[0]
    macros[f"{name.upper()}_{split.upper()}"] = _write(
        output / f"{name}.{split}.tsv", map("\t".join, rows))
  vocabulary = output / "vocabulary.model"
  vocabulary.write_bytes(vocabularies.train(
      vocabularies.read(
          [str(path) for macro, path in macros.items() if macro.endswith("_TRAIN")]),
      vocabulary_size))
  macros["synthesizer_mtf.tasks.vocabulary.sentencepiece_model"] = vocabulary
  return _write(output / "data.gin", (
      f"{name} = {str(path.resolve())!r}" for name, path in macros.items()))


def _source(sources, name):
  path = sources / f"{name}.jsonl.gz"
  if not path.exists():
    raise checks.Error(
        f"SOURCES is {str(sources)!r} but has no {path.name}; put it there.")
  return path


def _pairs(path, pair) -> Iterator[tuple[str, str]]:
  """Yields (inputs, targets), each on one line; rows without text are left out."""
  lines = lines_lib.Lines(str(path))
  for line in lines:
    try:
      inputs, target = (" ".join(side.split()) for side in pair(json.loads(line)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
      raise lines.error(f"the row lacks a key, or a value is wrong ({error!r}); --help "
                        "names the keys.") from None
    if inputs and target:
      yield inputs, target


def _write(path, lines):
  path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
  return path


def main(argv: list[str] | None = None) -> None:
  """Reads the flags and writes the files."""
  parser = arguments.parser("prepare_studies", __doc__)
  parser.add_argument("sources", type=pathlib.Path, metavar="SOURCES")
  parser.add_argument("output", type=pathlib.Path, metavar="OUTPUT")
  parser.add_argument("--vocab_size", type=arguments.positive, default=4000,
                      help="pieces (default: %(default)s)")
  with arguments.command(parser, argv) as args:
    print(f"Wrote {prepare(args.sources, args.output, args.vocab_size)}")


if __name__ == "__main__":
  main()
