"""The user's own text: one document per line, or pairs of input and target.

Files come from gin, or from the environment where gin says nothing:

  synthesizer_mtf.tasks.text.train = "/data/*.txt.gz"
  synthesizer_mtf.tasks.text.validation = "/data/held_out.txt"
  SYNTHESIZER_MTF_TEXT_TRAIN, SYNTHESIZER_MTF_TEXT_VALIDATION

  synthesizer_mtf.tasks.pairs.train = ["/data/a.tsv", "/data/b.jsonl"]
  synthesizer_mtf.tasks.pairs.validation = "/data/dev.tsv"
  SYNTHESIZER_MTF_PAIRS_TRAIN, SYNTHESIZER_MTF_PAIRS_VALIDATION

Pairs are two columns with a tab between them; in files that end in `.jsonl` or
`.json`, each line is an object with the strings "inputs" and "targets". Quotes
have no meaning in columns. Pairs that are longer than the sequence length are
cut and counted. Of a document longer than 65,536 tokens, T5's objectives take
another 65,536 at random in each pass; the log tells the longest line.
"""

from collections.abc import Iterator
import functools
import json

import gin
import seqio
from synthesizer_mtf.tasks import c4
from synthesizer_mtf.tasks import cut_examples
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tasks import vocabulary
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf

_KEYS = ("inputs", "targets")
_JSON = (".jsonl", ".json")


@gin.configurable("text", module="synthesizer_mtf.tasks")
def _text_files(split, train=None, validation=None):
  """Returns (what names the files, globs) of a split of plain text."""
  value = {"train": train, "validation": validation}[split]
  return text_source.chosen_globs(
      f"synthesizer_mtf.tasks.text.{split}",
      f"SYNTHESIZER_MTF_TEXT_{split.upper()}", value)


@gin.configurable("pairs", module="synthesizer_mtf.tasks")
def _pair_files(split, train=None, validation=None):
  """Returns (what names the files, globs) of a split of pairs."""
  value = {"train": train, "validation": validation}[split]
  return text_source.chosen_globs(
      f"synthesizer_mtf.tasks.pairs.{split}",
      f"SYNTHESIZER_MTF_PAIRS_{split.upper()}", value)


def _parse_text(lines):
  """Yields the documents of a file, to count them."""
  yield from lines


def _read_text(path):
  """Returns a tf.data.Dataset of the documents of a file."""
  return text_source.read_lines(path).map(lambda line: {"text": line})


def parse_pairs(lines: text_source.Lines) -> Iterator[tuple[str, str]]:
  """Yields (inputs, targets) of each line of a file.

  Args:
    lines: `text_source.Lines`.

  Raises:
    ValueError: a line is not a pair.
  """
  split = _json_pair if is_json(lines.path) else _column_pair
  for line in lines:
    try:
      pair = split(line)
    except ValueError as error:
      raise lines.error(str(error)) from None
    if not all(text.strip() for text in pair):
      raise lines.error("the input or the target is empty; fill it in or "
                        "remove the line.")
    yield pair


def is_json(path: str) -> bool:
  """Whether the name of a file says that its lines are JSON."""
  return path.removesuffix(".gz").endswith(_JSON)


def _column_pair(line):
  """Returns the two columns of a line."""
  pair = tuple(line.split("\t"))
  if len(pair) != 2:
    raise ValueError(f"{len(pair)} columns, but a pair needs 2, the input and "
                     "the target, with one tab between them.")
  return pair


def _json_pair(line):
  """Returns (inputs, targets) of an object in JSON."""
  try:
    row = json.loads(line)
  except ValueError as error:
    raise ValueError(
        f"not JSON ({error}); write one object per line.") from None
  pair = tuple(row.get(k) for k in _KEYS) if isinstance(row, dict) else ()
  if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
    raise ValueError('an object with the strings "inputs" and "targets" is '
                     f"needed, not {line[:80]!r}.")
  if any("\ud800" <= letter <= "\udfff" for text in pair for letter in text):
    raise ValueError("half of a surrogate pair (\\ud800 to \\udfff), which is "
                     "no text; write the whole character.")
  return pair


def _read_pairs(path):
  """Returns a tf.data.Dataset of the pairs of a file.

  TensorFlow splits columns; JSON is left to Python, which runs in the process
  of the trainer only: where hosts of a pod read the data, cache the task first
  (`seqio_cache_tasks`).

  Args:
    path: <string>[].
  """
  json_lines = tf.strings.regex_full_match(path, r".*\.jsonl?(\.gz)?")

  def from_json(line):
    return tf.stack(tf.numpy_function(
        lambda text: _json_pair(text.decode("utf-8")), [line],
        [tf.string, tf.string], stateful=False))

  def pair(line):
    both = tf.cond(json_lines, lambda: from_json(line),
                   lambda: tf.strings.split([line], "\t").values)
    return dict(zip(_KEYS, tf.unstack(tf.ensure_shape(both, (2,)))))

  return text_source.read_lines(path).map(
      pair, num_parallel_calls=tf.data.AUTOTUNE)


_TEXT = text_source.FilesDataSource(_text_files, _parse_text, _read_text)

# The objective of `synth_c4_span_corruption`.
seqio.TaskRegistry.add(
    "synth_text_span_corruption",
    source=_TEXT,
    preprocessors=c4.SPAN_CORRUPTION,
    output_features=vocabulary.features(),
    metric_fns=[])

# For decoder-only models (`lm`), as T5's `c4_v220_full_lm`: documents joined
# with an end of sequence after each, cut to the length of the targets.
seqio.TaskRegistry.add(
    "synth_text_lm",
    source=_TEXT,
    preprocessors=[
        functools.partial(preprocessors.rekey, key_map={"targets": "text"}),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        preprocessors.full_lm,
    ],
    output_features={
        "targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=True)
    },
    metric_fns=[])

# A large buffer, since such files are often sorted.
seqio.TaskRegistry.add(
    "synth_text_pairs",
    source=text_source.FilesDataSource(_pair_files, parse_pairs, _read_pairs),
    preprocessors=[
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        cut_examples.report,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=vocabulary.features(),
    metric_fns=[metrics.bleu, metrics.sequence_accuracy],
    shuffle_buffer_size=100_000)
