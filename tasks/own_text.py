"""The user's own text: one document per line, or pairs of input and target.

Gin names the files. If gin does not, the environment does:

  synthesizer_mtf.tasks.text.train = "/data/*.txt.gz"
  synthesizer_mtf.tasks.text.validation = "/data/held_out.txt"
  SYNTHESIZER_MTF_TEXT_TRAIN, SYNTHESIZER_MTF_TEXT_VALIDATION, ..._TEST

  synthesizer_mtf.tasks.pairs.train = ["/data/a.tsv", "/data/b.jsonl"]
  synthesizer_mtf.tasks.pairs.validation = "/data/dev.tsv"
  SYNTHESIZER_MTF_PAIRS_TRAIN, SYNTHESIZER_MTF_PAIRS_VALIDATION, ..._TEST

A document is a line of plain text. In files that end in `.jsonl` or `.json`, also with
`.gz`, it is the string "text" of a JSON object, as in C4's files:

  synthesizer_mtf.tasks.text.key = "text"

In CSV (`.csv`, with a header) and Parquet (`.parquet`) it is the column of that name.
Pairs are two columns, separated by a tab, without quotes or header. In the other
formats they are the strings "inputs" and "targets", unless gin binds other keys, or
texts with several keys, as in T5's prefixes. A label is a name of the list that gin
binds, or its index in this list, from 0 on, also as pandas writes it (`1.0`, `True`):

  synthesizer_mtf.tasks.pairs.keys = {
      "inputs": "premise: {premise} hypothesis: {hypothesis}", "targets": "label"}
  synthesizer_mtf.tasks.pairs.classes = ["entailment", "neutral", "contradiction"]

`synthesizer_mtf.tasks.pairs.metrics` lists the metrics of `synth_text_pairs`. Pairs
that are longer than the sequence length are cut and counted. If a document is longer
than 65,536 tokens, T5's objectives take 65,536 of them at random in each pass. The log
gives the length of the longest line.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import re
from typing import Any

from absl import logging
import gin
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import dialogue_metrics
from synthesizer_mtf.tasks import language_modeling
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import records
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import text_metrics
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tasks import text_to_text
from synthesizer_mtf.tasks import translation
from synthesizer_mtf.tasks import vocabulary
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf

KEYS = ("inputs", "targets")

# The metrics of pairs: functions of targets and predictions, two lists of strings.
METRICS: dict[str, text_metrics.Metric] = {
    "accuracy": metrics.accuracy,
    "bleu": text_metrics.bleu,
    "edit_distance": text_metrics.by_spaces(metrics.edit_distance),
    "embedding_average": text_metrics.by_spaces(dialogue_metrics.embedding_average),
    "meteor": text_metrics.by_spaces(dialogue_metrics.meteor),
    "overlap": text_metrics.by_spaces(dialogue_metrics.overlap),
    "rouge": text_metrics.rouge,
    "sequence_accuracy": metrics.sequence_accuracy,
    "tokenized_bleu": text_metrics.by_spaces(translation.tokenized_bleu),
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
           metrics=("bleu", "sequence_accuracy"), classes=None, keys=None):
  """Returns a dict of its arguments; gin passes them."""
  return {"train": train, "validation": validation, "test": test,
          "metrics": metrics, "classes": classes, "keys": keys}


def pair_classes() -> tuple[str, ...]:
  """Returns `pairs.classes`; raises a ValueError if they are not names."""
  return _checked_classes(_pairs()["classes"])


def _checked_classes(classes):
  if (not isinstance(classes, (list, tuple)) or len(set(classes)) < max(
      2, len(classes)) or not all(c and isinstance(c, str) for c in classes)):
    raise checks.Error(
        f"`{_MODULE}.pairs.classes` is {classes!r} but must be the names of two or "
        "more classes, as they stand in the files; write it as ['neg', 'pos'].")
  return tuple(classes)


class _PairsTask(task.Task):
  """A task whose metrics gin names."""

  @property
  def metric_fns(self) -> list[seqio.MetricFnCallable]:
    names = _pairs()["metrics"]
    if isinstance(names, str) or not isinstance(names, (list, tuple)):
      names = [names]
    for name in names:
      if name not in METRICS:
        raise checks.Error(
            f"`{_MODULE}.pairs.metrics` names {name!r}, which is not a metric; use "
            f"some of {', '.join(map(repr, METRICS))}.")
    return [METRICS[name] for name in names]


def _chosen(name, globs, split, scope):
  """Returns (the parameter or variable, the globs) that name a split's files."""
  prefix = f"{scope}/" if scope else ""
  return text_source.chosen_globs(
      f"{prefix}{_MODULE}.{name}.{split}",
      f"SYNTHESIZER_MTF_{name.upper()}_{split.upper()}", globs[split])


class TextFiles(text_source.FilesDataSource):
  """The files with documents."""
  features = ("text",)

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    return _chosen("text", self.bound(_text)[0], split, self.scope)

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str]]:
    return parse_text(lines, self._key(), f"`{_MODULE}.text.key`")

  def of_lines(self) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda lines: lines[:, None]

  def made_with(self) -> dict[str, str | None]:
    return {"key of the text": self._key()}

  def _key(self):
    return self.bound(_text)[1]

  def has_fields(self, path: str) -> bool:
    return self._key() is not None and super().has_fields(path)


class PairFiles(text_source.FilesDataSource):
  """The files with pairs of input and target."""
  features = KEYS

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    return _chosen("pairs", self.bound(_pairs), split, self.scope)

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
    chosen = self.bound(_pairs)
    return parse_pairs(lines, chosen["keys"], self._classes())

  def of_lines(self) -> Callable[[tf.Tensor], tf.Tensor]:
    names = _names_of_labels(self._classes())

    def pairs(lines):
      inputs, targets = tf.unstack(tf.reshape(
          tf.strings.split(lines, "\t").flat_values, [-1, 2]), axis=1)
      plain = tf.strings.regex_replace(tf.strings.strip(targets), _NUMBER, _DIGITS)
      named = targets
      for label, name in names.items():
        named = tf.where(plain == label, name, named)
      for name in set(names.values()):  # A name that is written out wins.
        named = tf.where(targets == name, name, named)
      return tf.stack([inputs, named], axis=1)

    return pairs

  def made_with(self) -> dict[str, Any]:
    keys = self.bound(_pairs)["keys"]
    made = {"keys of the pairs": keys, "names of the numbers": list(self._classes())}
    return {what: value for what, value in made.items() if value}

  def _classes(self):
    classes = self.bound(_pairs)["classes"]
    return () if classes is None else _checked_classes(classes)


def parse_text(lines: lines_lib.Lines, key: str | None,
               parameter: str) -> Iterator[tuple[str]]:
  """Yields (text,) of each document of a file.

  Args:
    lines: `Lines`; a blank text in a field counts as a blank line.
    key: the key of the text in rows with named fields; None to take lines as they are.
    parameter: the name of the parameter that gives `key`, for messages.

  Raises:
    ValueError: a row has no text under `key`, all texts are blank, or a file whose
      name says plain text holds JSON with `key`.
  """
  if key is not None and records.has_fields(lines.path):
    yield from _documents_in_fields(lines, key, parameter)
    return
  for i, line in enumerate(lines):
    if not i and key is not None:
      _check_is_text(lines, line, key, parameter)
    yield line,


def _documents_in_fields(lines, key, parameter):
  """Yields (text,) of each row whose text is not blank."""
  has_text = False
  for text, in records.texts(
      lines, [records.Template(parameter, key)],
      f" {parameter} is {key!r}; change it if the text has another key."):
    if text.strip():
      has_text = True
      yield text,
    else:
      lines.skip_blank()
  if not has_text:
    raise lines.no_text()


def _check_is_text(lines, line, key, parameter):
  """Raises a ValueError, or warns, if the first line of plain text is a JSON object."""
  if records.is_object(line, [key]):
    raise lines.error(
        f"this is an object in JSON with the string {key!r}, but the name of the "
        "file says plain text; let it end in .jsonl or .jsonl.gz to read that "
        f"string, or set {parameter} to None to read the markup.")
  if records.is_object(line):
    logging.warning(
        "%r is read as plain text, but its first line is an object in JSON; for "
        "a text in it let the name end in .jsonl, and set %s.", lines.path,
        parameter)


def parse_pairs(lines: lines_lib.Lines, keys: Mapping[str, str] | None = None,
                classes: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
  """Yields (inputs, targets) of each row of a file.

  Args:
    lines: `Lines`.
    keys: the templates of inputs and targets in named fields; "inputs" and "targets" by
      default.
    classes: the names of the targets; none for targets that are texts.

  Raises:
    ValueError: a row is not a pair, or a target is no class.
  """
  names = _names_of_labels(classes)
  has_fields = records.has_fields(lines.path)
  if keys is not None and not has_fields:
    logging.warning(
        "`%s.pairs.keys` is not read for %r: its name says two columns, without names. "
        "Leave it out, or let the name of a file with named fields end in .csv or "
        ".jsonl.", _MODULE, lines.path)
  for inputs, target in (_pairs_in_fields(lines, keys, classes) if has_fields else
                         _columns(lines)):
    if not inputs.strip() or not target.strip():
      raise lines.error("the input or the target is empty; fill it in or "
                        "remove the line.")
    yield inputs, _class_of(target, names, classes, lines) if classes else target


# An integer, with what pandas and people add to it, and what is left of it.
_NUMBER, _DIGITS = r"^\+?(-?)0*([0-9]+)(?:\.0*)?$", r"\1\2"
_SPACES = " \t\n\v\f\r"  # Those of `tf.strings.strip`.


def _class_of(target, names, classes, lines):
  """The class of a target, by name or number; raises a ValueError for any other."""
  if target in classes:
    return target
  label = _label(target)
  if label in names:
    return names[label]
  if label.isdecimal():
    raise lines.error(
        f"the target is the number {target}, but `{_MODULE}.pairs.classes` is "
        f"{list(classes)!r}, whose numbers are "
        f"{', '.join(filter(str.isdecimal, names))}; correct the line, or name all "
        "classes.")
  raise lines.error(
      f"the target {target[:40]!r} is none of `{_MODULE}.pairs.classes`, which are "
      f"{list(classes)!r}; correct the line, or add the class. Without this parameter "
      "targets are texts.")


def _label(target):
  """A target without spaces, and without what files add to an integer."""
  return re.sub(_NUMBER, _DIGITS, target.strip(_SPACES))


def _names_of_labels(classes):
  """Returns a dict from the labels that stand for classes, to the classes' names.

  If any name is a number, each name stands for itself. "True" and "False" are 1 and 0
  if there are two classes, and neither has such a name.
  """
  names = {_label(name): name for name in classes}
  if any(re.match(_NUMBER, name) for name in names):
    return names
  names |= {str(i): name for i, name in enumerate(classes)}
  truths = [word for value in ("False", "True")
            for word in (value, value.lower(), value.upper())]
  if len(classes) == 2 and not names.keys() & truths:
    names |= {word: classes[i // 3] for i, word in enumerate(truths)}
  return names


def _pairs_in_fields(lines, keys, classes):
  """Yields (inputs, targets) of rows with named fields."""
  parameter = f"`{_MODULE}.pairs.keys`"
  if keys is not None and not (isinstance(keys, Mapping) and set(keys) <= set(KEYS)):
    raise checks.Error(
        f"{parameter} is {keys!r} but must be a dict with \"inputs\" and \"targets\"; "
        "write it as {'inputs': 'sentence', 'targets': 'label'}.")
  keys = {**{key: key for key in KEYS}, **(keys or {})}
  return records.texts(
      lines, [records.Template(f"{parameter}[{key!r}]", keys[key],
                               numbers=key == "targets" and bool(classes))
              for key in KEYS],
      f" {parameter} names other keys, and `{_MODULE}.pairs.classes` the names of "
      "targets that are numbers.")


def _columns(lines):
  """Yields the two columns of each line."""
  for line in lines:
    pair = line.split("\t")
    if len(pair) != 2:
      raise lines.error(f"{len(pair)} columns, but a pair needs 2, the input and "
                        "the target, with one tab between them.")
    yield pair


_TEXT = TextFiles()

# The objective of `synth_c4_span_corruption`.
text_to_text.add("synth_text_span_corruption", _TEXT,
                 preprocessors=language_modeling.SPAN_CORRUPTION, metric_fns=[])

# The end of sequence after each document is an id like any other in the text. With
# `add_eos` in the features, Mesh would overwrite the last id of each row with its own.
_TARGETS = {"targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=False)}
_ENDS = {"targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=True)}


def _full_lm(dataset, sequence_length):
  """Documents joined with an end of sequence after each, cut into rows."""
  return preprocessors.full_lm(dataset, sequence_length, _ENDS)


# For decoder-only models (`lm`), like T5's `c4_v220_full_lm`.
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

text_to_text.add("synth_text_pairs", PairFiles(), task_cls=_PairsTask,
                 shuffle_buffer_size=None)  # The source shuffles.
