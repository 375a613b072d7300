"""The user's own text: one document per line, or pairs of input and target.

Files come from gin, or from the environment where gin says nothing:

  synthesizer_mtf.tasks.text.train = "/data/*.txt.gz"
  synthesizer_mtf.tasks.text.validation = "/data/held_out.txt"
  SYNTHESIZER_MTF_TEXT_TRAIN, SYNTHESIZER_MTF_TEXT_VALIDATION, ..._TEST

  synthesizer_mtf.tasks.pairs.train = ["/data/a.tsv", "/data/b.jsonl"]
  synthesizer_mtf.tasks.pairs.validation = "/data/dev.tsv"
  SYNTHESIZER_MTF_PAIRS_TRAIN, SYNTHESIZER_MTF_PAIRS_VALIDATION, ..._TEST

A document is a line of plain text; in files that end in `.jsonl` or `.json`, also
with `.gz`, it is the string "text" of an object in JSON, as C4 is handed out:

  synthesizer_mtf.tasks.text.key = "text"

Pairs are two columns with a tab between them; in JSON lines, each line is an
object with the strings "inputs" and "targets". Quotes have no meaning in columns.
`synthesizer_mtf.tasks.pairs.metrics` names what `synth_text_pairs` is measured by.
Pairs that are longer than the sequence length are cut and counted. Of a document
longer than 65,536 tokens, T5's objectives take another 65,536 at random in each
pass; the log tells the longest line.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import functools

from absl import logging
import gin
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import c4
from synthesizer_mtf.tasks import cut_examples
from synthesizer_mtf.tasks import dialogue_metrics
from synthesizer_mtf.tasks import json_lines
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import summarization
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tasks import translation
from synthesizer_mtf.tasks import vocabulary
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf

KEYS = ("inputs", "targets")

# Of pairs, by name: functions from targets and predictions, two lists of strings.
METRICS = {
    "accuracy": metrics.accuracy,
    "bleu": metrics.bleu,
    "edit_distance": metrics.edit_distance,
    "embedding_average": dialogue_metrics.embedding_average,
    "meteor": dialogue_metrics.meteor,
    "overlap": dialogue_metrics.overlap,
    "rouge": summarization.rouge,
    "sequence_accuracy": metrics.sequence_accuracy,
    "tokenized_bleu": translation.tokenized_bleu,
}
_MODULE = "synthesizer_mtf.tasks"


@gin.configurable("text", module=_MODULE)
def _text(train=None, validation=None, test=None, key="text"):
  """Returns (a dict from splits to globs, the key of JSON lines)."""
  if key is not None and not (key and isinstance(key, str)):
    raise checks.Error(f"`{_MODULE}.text.key` is {key!r}; name the key of the text "
                       "in JSON lines, or None to read them as plain text.")
  return {"train": train, "validation": validation, "test": test}, key


@gin.configurable("pairs", module=_MODULE)
def _pairs(train=None, validation=None, test=None,
           metrics=("bleu", "sequence_accuracy"), classes=None):
  """Returns a dict of its arguments; gin passes them."""
  return {"train": train, "validation": validation, "test": test,
          "metrics": metrics, "classes": classes}


def pair_classes() -> tuple[str, ...]:
  """Returns `pairs.classes`; raises ValueError where these are no names."""
  classes = _pairs()["classes"]
  if (not isinstance(classes, (list, tuple)) or len(set(classes)) < max(
      2, len(classes)) or not all(c and isinstance(c, str) for c in classes)):
    raise checks.Error(
        f"`{_MODULE}.pairs.classes` is {classes!r} but must be the names of two or "
        "more classes, as they stand in the files; write it as ['neg', 'pos'].")
  return tuple(classes)


class _PairsTask(task.Task):
  """Whose metrics gin names."""

  @property
  def metric_fns(self) -> list[seqio.MetricFnCallable]:
    names = _pairs()["metrics"]
    if isinstance(names, str) or not isinstance(names, (list, tuple)):
      names = [names]
    for name in names:
      if name not in METRICS:
        raise checks.Error(
            f"`{_MODULE}.pairs.metrics` names {name!r}, which is no metric; use some "
            f"of {', '.join(map(repr, METRICS))}.")
    return [METRICS[name] for name in names]


def _chosen(name, globs, split):
  """Returns (what names the files, globs) of a split of "text" or "pairs"."""
  return text_source.chosen_globs(
      f"{_MODULE}.{name}.{split}",
      f"SYNTHESIZER_MTF_{name.upper()}_{split.upper()}", globs[split])


class TextFiles(text_source.FilesDataSource):
  """Documents."""
  features = ("text",)

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    return _chosen("text", self.bound(_text)[0], split)

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str]]:
    return parse_text(lines, self._key(), f"`{_MODULE}.text.key`")

  def read(self, paths: tf.Tensor, block: int) -> tf.data.Dataset:
    return text_source.read_lines(paths, block).map(lambda lines: lines[:, None])

  def needs_python(self, path: str) -> bool:
    return self._key() is not None and json_lines.is_json(path)

  def made_with(self) -> dict[str, str | None]:
    return {"key of the text": self._key()}

  def _key(self):
    return self.bound(_text)[1]


class PairFiles(text_source.FilesDataSource):
  """Pairs of input and target."""
  features = KEYS

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    return _chosen("pairs", self.bound(_pairs), split)

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
    return parse_pairs(lines)

  def read(self, paths: tf.Tensor, block: int) -> tf.data.Dataset:
    return text_source.read_lines(paths, block).map(lambda lines: tf.reshape(
        tf.strings.split(lines, "\t").flat_values, [-1, 2]))

  def needs_python(self, path: str) -> bool:
    return json_lines.is_json(path)


def parse_text(lines: lines_lib.Lines, key: str | None,
               parameter: str) -> Iterator[tuple[str]]:
  """Yields (text,) of each document of a file.

  Args:
    lines: `Lines`; a blank text in JSON counts as a blank line.
    key: of the text where lines are JSON; None to take them for plain text.
    parameter: the name of what gives `key`, for messages.

  Raises:
    ValueError: a line of JSON has no text under `key`, all texts are blank, or
      what is named as plain text is such JSON.
  """
  if key is not None and json_lines.is_json(lines.path):
    yield from _json_documents(lines, key, parameter)
    return
  for i, line in enumerate(lines):
    if not i and key is not None:
      _check_is_text(lines, line, key, parameter)
    yield line,


def _json_documents(lines, key, parameter):
  """Yields (text,) of each line that is an object in JSON."""
  found = False
  for line in lines:
    try:
      text, = json_lines.strings(line, [key])
    except ValueError as error:
      raise lines.error(f"{error} {parameter} is {key!r}; change it if the text "
                        "has another key.") from None
    if text.strip():
      found = True
      yield text,
    else:
      lines.skip_blank()
  if not found:
    raise checks.Error(f"{lines.path!r} holds no text; give a file with some, or "
                       "leave it out.")


def _check_is_text(lines, line, key, parameter):
  """Says so where the first line of plain text is an object in JSON."""
  if json_lines.is_object(line, [key]):
    raise lines.error(
        f"this is an object in JSON with the string {key!r}, but the name of the "
        "file says plain text; let it end in .jsonl or .jsonl.gz to read that "
        f"string, or set {parameter} to None to read the markup.")
  if json_lines.is_object(line):
    logging.warning(
        "%r is read as plain text, but its first line is an object in JSON; for "
        "a text in it let the name end in .jsonl, and set %s.", lines.path,
        parameter)


def parse_pairs(lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
  """Yields (inputs, targets) of each line of a file.

  Args:
    lines: `Lines`.

  Raises:
    ValueError: a line is not a pair.
  """
  is_json = json_lines.is_json(lines.path)
  for line in lines:
    try:
      pair = json_lines.strings(line, KEYS) if is_json else _columns(line)
    except ValueError as error:
      raise lines.error(str(error)) from None
    if not all(text.strip() for text in pair):
      raise lines.error("the input or the target is empty; fill it in or "
                        "remove the line.")
    yield pair


def _columns(line):
  """Returns the two columns of a line."""
  pair = tuple(line.split("\t"))
  if len(pair) != 2:
    raise checks.Error(f"{len(pair)} columns, but a pair needs 2, the input and "
                       "the target, with one tab between them.")
  return pair


_TEXT = TextFiles()

# The objective of `synth_c4_span_corruption`.
task.add(
    "synth_text_span_corruption",
    source=_TEXT,
    preprocessors=c4.SPAN_CORRUPTION,
    output_features=vocabulary.features(),
    metric_fns=[])

# An end of sequence after each document is an id of the text as any other. With
# `add_eos` in the features Mesh would write one over the last id of each row.
_TARGETS = {"targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=False)}
_ENDS = {"targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=True)}


def _full_lm(dataset, sequence_length):
  """Documents joined with an end of sequence after each, cut into rows."""
  return preprocessors.full_lm(dataset, sequence_length, _ENDS)


# For decoder-only models (`lm`), as T5's `c4_v220_full_lm`.
task.add(
    "synth_text_lm",
    source=_TEXT,
    preprocessors=[
        functools.partial(preprocessors.rekey, key_map={"targets": "text"}),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        _full_lm,
    ],
    output_features=_TARGETS,
    metric_fns=[])

task.add(
    "synth_text_pairs",
    source=PairFiles(),
    preprocessors=[
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        cut_examples.report,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=vocabulary.features(),
    task_cls=_PairsTask,
    shuffle_buffer_size=None)  # The source shuffles.
