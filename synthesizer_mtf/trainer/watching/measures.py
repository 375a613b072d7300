"""What evaluations measure: only values of the same measure can be compared."""

from collections.abc import Iterable
from collections.abc import Iterator
import hashlib
import inspect
import re
from typing import Any
from typing import NamedTuple

from mesh_tensorflow.transformer import dataset as mesh_dataset
from mesh_tensorflow.transformer import transformer
import numpy as np
import seqio
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.data import data_record
from synthesizer_mtf.trainer.data import decode_length
import tensorflow.compat.v1 as tf
import tensorflow_datasets as tfds

# Metrics of every task, which need no decoding. All are better if they are greater.
TEACHER_FORCED = ("neg_log_perplexity", "token_accuracy", "sequence_accuracy")
# Words in the names of metrics whose least value is the best, and words that turn them.
_LOW = re.compile(
    r"\b(bits|bp[bcd]|brier|[cmtw]er|cost|deviation|distances?|divergence|ece|edits?|eer"
    r"|entropy|errors?|hamming|hter|kl|levenshtein|loss(es)?|r?m[as]p?e|msle|nats|nll"
    r"|perplexit(y|ies)|ppl|regret|rmsle|surprisal)\b")
_TURNED = re.compile(
    r"\b(accuracy|correct|correlation|f1|free|gain|improvement|inverse|minus|neg|negative"
    r"|precision|ratio|recall|reduction|similarity)\b")
_LIKELIHOOD = re.compile(r"neg(ative)? log (likelihood|prob|probability)\b")
_SHOWN = 64  # The number of examples that show whether they are drawn at random.
_DECODING = {
    "Bitransformer.decode": transformer.Bitransformer.decode,
    "Unitransformer.sample_autoregressive":
        transformer.Unitransformer.sample_autoregressive,
    "synthesizer_decode_length": decode_length.bound}

# JSON's values by name.
Measure = dict[str, Any]


def is_low(metric: str) -> bool:
  """Whether the name of a metric says that its least value is the best.

  Names are such as "wer", "meanEditDistance" or "TASK/neg_log_perplexity".
  """
  name = re.sub("(?<=[a-z])(?=[A-Z])", " ", metric.rpartition("/")[2]).lower()
  words = re.sub("[^a-z0-9]+", " ", name)
  return bool(_LIKELIHOOD.search(words) or (
      _LOW.search(words) and not _TURNED.search(words)))


def decodes(metric: str) -> bool:
  """Whether a metric compares decodes with targets."""
  return metric.rpartition("/")[2] not in TEACHER_FORCED


class Examples(NamedTuple):
  """The examples of a task, as the model reads them.

  Attributes:
    source: what they are made of, by their pipeline and the contents of its files.
    number: how many there are.
    sha256: a digest of them, or None.
  """
  source: data_record.Record
  number: int
  sha256: str | None


def measure(metric: str, greater_is_better: bool, split: str,
       datasets: Iterable[mesh_dataset.EvalDataset],
       known: dict[str, Examples]) -> Measure:
  """What evaluations of a split of data by a metric measure now.

  A changed file, preprocessor, length or number of examples is another measure, and a
  copied file is not. Examples whose pipeline and files are those of the last call are
  not read again: `known` has them by task, and gets those of this call. The data are in
  the default graph.
  """
  for data in datasets:
    known[data.name] = _examples(data, split, known.get(data.name))
  return {
      "metric": metric, "greater_is_better": greater_is_better, "split": split,
      "data": {data.name: {"number": known[data.name].number,
                           "sha256": known[data.name].sha256} for data in datasets},
      "decoding": dict(_decoding()) if decodes(metric) else {}}


def differences(before: Measure, now: Measure) -> list[str]:
  """Says in what two measures differ; entries that one of them lacks are left out."""
  said = [f"{name!r} was {before[name]!r} and is {now[name]!r}"
          for name in ("metric", "greater_is_better", "split")
          if name in before and before[name] != now[name]]
  if "data" in before and set(before["data"]) != set(now["data"]):
    said.append(f"the tasks were {_listed(before['data'])} and are "
                f"{_listed(now['data'])}")
  elif not said:
    said += _data_differences(before.get("data", {}), now["data"])
  then = before.get("decoding", {})
  return said + [f"{name!r} was {then[name]!r} and is {value!r}"
                 for name, value in now["decoding"].items()
                 if then.get(name, value) != value]


def _listed(names):
  return ", ".join(sorted(names)) or "none"


def _data_differences(before, now):
  for task, then in before.items():
    if then["number"] != now[task]["number"]:
      yield (f"the split of {task} had {then['number']} examples and has "
             f"{now[task]['number']}")
    elif None not in (then["sha256"], now[task]["sha256"]) and (
        then["sha256"] != now[task]["sha256"]):
      yield f"the split of {task} has other examples, or the model reads them otherwise"


def _decoding() -> Iterator[tuple[str, Any]]:
  """Yields the parameters of decoding, as gin passes them, by name."""
  for selector, function in _DECODING.items():
    for parameter in inspect.signature(function).parameters.values():
      name = f"{selector}.{parameter.name}"
      value = gin_files.bound(name, parameter.default)
      if isinstance(value, bool | int | float | str | None):
        yield name, value


def _examples(data, split, before):
  """The `Examples` of a task.

  Examples that are drawn at random differ in each reading. Then their source is read.
  """
  with tf.Graph().as_default():
    tf.data.make_initializable_iterator(data.dataset_fn())
    source = data_record.describe(tf.get_collection(data_record.ITERATORS))
  if before is not None and source == before.source and not source.unknown:
    return before
  number, digest = _read(data.dataset_fn())
  if _read(data.dataset_fn().take(_SHOWN)) != _read(data.dataset_fn().take(_SHOWN)):
    digest = _source_digest(data.name, split, number)
  return Examples(source, number, digest)


def _source_digest(task, split, number):
  """A digest of as many examples of a task before its preprocessors; None without."""
  if task not in seqio.TaskRegistry.names():
    return None
  source = seqio.TaskRegistry.get(task).source
  return _read(source.get_dataset(split=split, shuffle=False).take(number))[1]


def _read(data: tf.data.Dataset) -> tuple[int, str]:
  """The number of examples, and a digest of them."""
  digest, number = hashlib.sha256(), 0
  for example in tfds.as_numpy(data):
    number += 1
    for name in sorted(example):
      value = np.asarray(example[name])
      text = value.dtype.kind in "OSU"  # Their bytes would be addresses, or padded.
      digest.update(repr((name, value.shape, value.tolist() if text else
                          value.dtype.str)).encode())
      digest.update(b"" if text else value.tobytes())
  return number, digest.hexdigest()
