"""The demo's files: text, pairs, a vocabulary, and the gin file naming them.

Users need the same files for their own text: one document per line, pairs in two
columns, a SentencePiece model with T5's ids, and five lines of gin.
"""

import json
import pathlib

from synthesizer_mtf.demo import name_pairs
from synthesizer_mtf.tasks import english
from synthesizer_mtf.tools.base import vocabularies

VOCABULARY_SIZE = 2000

# The bindings of data.gin, which point the package's tasks at the files beside it.
_BINDINGS = {
    "vocabulary.sentencepiece_model": "vocabulary.model",
    "text.train": "text.train.txt", "text.validation": "text.validation.txt",
    "pairs.train": "pairs.train.tsv", "pairs.validation": "pairs.validation.tsv"}

# Questions that the last stage decodes; none is in the training pairs.
_NUM_QUESTIONS = 12


def make(folder: pathlib.Path) -> dict[str, int]:
  """Writes all files into a folder, unless it is complete.

  Returns:
    a dict of counts, the same whether the files are new or not.
  """
  summary = folder / "summary.json"
  if not summary.exists():
    folder.mkdir(parents=True, exist_ok=True)
    counts = _write_files(folder)
    # Written last: if this file exists, the others are complete.
    summary.write_text(json.dumps(counts) + "\n", encoding="utf-8")
  # Always, as an older version's file has other paths.
  _write_lines(folder / "data.gin", [
      f"synthesizer_mtf.tasks.{name} = {path!r}" for name, path in _BINDINGS.items()])
  return json.loads(summary.read_text(encoding="utf-8"))


def _write_files(folder):
  text = dict(zip(("train", "validation"), english.split()))
  pairs = dict(zip(("train", "validation"), name_pairs.split()))
  for split in text:
    _write_lines(folder / f"text.{split}.txt", text[split])
    _write_lines(folder / f"pairs.{split}.tsv", map("\t".join, pairs[split]))
  step = len(pairs["validation"]) // _NUM_QUESTIONS
  questions = pairs["validation"][::step][:_NUM_QUESTIONS]
  _write_lines(folder / "questions.txt", [source for source, _ in questions])
  (folder / "vocabulary.model").write_bytes(vocabularies.train(
      text["train"] + [side for pair in pairs["train"] for side in pair],
      VOCABULARY_SIZE, character_coverage=1.))
  return {
      "paragraphs": len(text["train"]), "held_out_paragraphs": len(text["validation"]),
      "characters": sum(map(len, text["train"])), "pairs": len(pairs["train"]),
      "held_out_pairs": len(pairs["validation"]), "vocabulary": VOCABULARY_SIZE}


def _write_lines(path, lines):
  path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


