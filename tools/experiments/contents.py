"""Tells from what the runs of a folder were made, also where paths stay the same.

A comparison continues in a folder with finished runs. If a gin file, a file that it
includes, or the data have changed since, new runs are of another experiment.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import importlib.util
import os
from typing import Any

from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.data import data_record
import tensorflow.compat.v1 as tf

_VARIABLES = "SYNTHESIZER_MTF_"  # They name data and the vocabulary.


def of(gin_files: Sequence[str], bindings: Sequence[str],
       modules: Iterable[str] = ()) -> dict[str, str]:
  """Digests of the files that runs are made from, by their paths.

  Comments in gin files do not count.

  Args:
    gin_files: gin files, which may include others.
    bindings: gin bindings. Each text in a binding, or in a variable of the environment
      that names our data, may name a file, files, a checkpoint, or a folder of either.
    modules: modules of the user's own.
  """
  statements: dict[str, Any] = {}
  paths = [path for name, value in os.environ.items() if name.startswith(_VARIABLES)
           for text in value.split(",") for path in _files(text.strip(), "")]
  for path, (scope, selector, name, value, _) in gin_names.given(gin_files, bindings):
    if path != gin_names.FLAG:
      digest = statements.setdefault(_short(path), hashlib.sha256())
      digest.update(repr((scope, selector, name, value)).encode())
    for text in _texts(value):
      paths += _files(text, os.path.dirname(path))
  for module in modules:
    spec = importlib.util.find_spec(module)
    paths += [spec.origin] if spec and spec.origin else []
  return {**{path: digest.hexdigest() for path, digest in statements.items()},
          **data_record.digests(paths)}


def _short(path):
  """The path of an installed gin file within its folder, which may move."""
  folders = [os.path.join(each, "") for each in gin_internals.folders() if each]
  return next((path.removeprefix(each) for each in folders if path.startswith(each)),
              path)


def _texts(value) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif isinstance(value, (list, tuple, Mapping)):
    for each in value.values() if isinstance(value, Mapping) else value:
      yield from _texts(each)


def _files(text, gin_folder):
  """The files that a text names, beside its gin file or in the working folder."""
  for path in dict.fromkeys([os.path.join(gin_folder or ".", text), text]):
    if found := data_record.existing(path) or data_record.existing(f"{path}.index"):
      return found
    if text and "://" not in path and os.path.isdir(path):
      saved = complete.find(path)[-1:]
      return [f"{each}.index" for each in saved] or [
          file for name in sorted(tf.io.gfile.listdir(path))
          for file in data_record.existing(os.path.join(path, name))]
  return []
