"""The user's own text: one document per line, or pairs of input and target.

Files come from gin, or from the environment where gin says nothing:

  synthesizer_mtf.tasks.text.train = "/data/*.txt.gz"
  synthesizer_mtf.tasks.text.validation = "/data/held_out.txt"
  SYNTHESIZER_MTF_TEXT_TRAIN, SYNTHESIZER_MTF_TEXT_VALIDATION

  synthesizer_mtf.tasks.pairs.train = ["/data/a.tsv", "/data/b.jsonl"]
  synthesizer_mtf.tasks.pairs.validation = "/data/dev.tsv"
  SYNTHESIZER_MTF_PAIRS_TRAIN, SYNTHESIZER_MTF_PAIRS_VALIDATION

Pairs are two columns with a tab between them; in files that end in `.jsonl` or
`.json`, each line is an object with the strings "inputs" and "targets".
"""

import functools
import json

import gin
import seqio
from synthesizer_mtf.tasks import c4
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tasks import vocabulary
from t5.data import preprocessors
from t5.evaluation import metrics


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


def _parse_text(line, path):
  """Returns the only feature of a document."""
  del path
  return (line,)


def _parse_pair(line, path):
  """Returns (inputs, targets) of a line; raises ValueError for a bad one."""
  if path.removesuffix(".gz").endswith((".jsonl", ".json")):
    pair = _parse_json(line)
  else:
    pair = line.split("\t")
    if len(pair) != 2:
      raise ValueError(f"{len(pair)} columns, but a pair needs 2, the input and "
                       "the target, with one tab between them.")
  if not all(text.strip() for text in pair):
    raise ValueError("the input or the target is empty; fill it in or remove "
                     "the line.")
  return tuple(pair)


def _parse_json(line):
  """Returns [inputs, targets] of an object in JSON."""
  try:
    row = json.loads(line)
  except ValueError as error:
    raise ValueError(f"not JSON ({error}); write one object per line.") from None
  pair = [row.get(k) for k in ("inputs", "targets")] if isinstance(
      row, dict) else []
  if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
    raise ValueError('an object with the strings "inputs" and "targets" is '
                     f"needed, not {line[:80]!r}.")
  return pair


_TEXT = text_source.FilesDataSource(_text_files, _parse_text, ("text",))

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
    source=text_source.FilesDataSource(
        _pair_files, _parse_pair, ("inputs", "targets")),
    preprocessors=[
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=vocabulary.features(),
    metric_fns=[metrics.bleu, metrics.sequence_accuracy],
    shuffle_buffer_size=100_000)
