"""Claims the folder of some runs, for this process and for what they are made from.

A comparison continues in a folder with finished runs. If a setting, a gin file, a file
that it includes, or the data have changed since, new runs are of another experiment.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import importlib.util
import json
import os
import pathlib
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import lock
from synthesizer_mtf.trainer.data import data_record
import tensorflow.compat.v1 as tf

_VARIABLES = "SYNTHESIZER_MTF_"  # They name data and the vocabulary.
_CLAIMED = set()  # The folders that this process has locked.


def claim(folder: pathlib.Path, settings: dict[str, Any],
          made_from: Mapping[str, str] | None = None) -> None:
  """Locks a folder until this process ends, and stores its settings.

  A process may claim its own folder again.

  Args:
    folder: a `pathlib.Path`; it is made if missing.
    settings: a dict that JSON can write.
    made_from: digests of the files that the runs are made from, as `contents`
      returns; None if there are none.

  Raises:
    ValueError: another process works in the folder, or it holds a run with other
      settings, or of other contents.
  """
  folder.mkdir(parents=True, exist_ok=True)
  if folder.resolve() not in _CLAIMED:
    lock.acquire(str(folder), "--output_dir")
    _CLAIMED.add(folder.resolve())
  path = folder / "settings.json"
  is_new = not path.exists()
  if is_new:
    path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
  held = json.loads(path.read_text(encoding="utf-8"))
  if held != settings:
    raise checks.Error(
        f"--output_dir={folder} holds a run with {held}, not {settings}; "
        "remove it or name another directory.")
  if made_from is not None:
    _check_contents(folder, dict(made_from), is_new)


def _check_contents(folder, made_from, is_new):
  """Stores the contents of a new folder, and compares those of another."""
  path = folder / "contents.json"
  if is_new:
    path.write_text(json.dumps(made_from) + "\n", encoding="utf-8")
  if not path.exists():
    print(f"WARNING: {path} is missing, as in folders of older versions, so nothing "
          "tells whether the runs there were made from the same gin files and data.")
    return
  then = json.loads(path.read_text(encoding="utf-8"))
  if changed := data_record.changed_files(then, made_from):
    raise checks.Error(
        f"--output_dir={folder} holds a run made from other contents: {changed}; bring "
        "them back, remove the folder, or name another directory.")


def contents(gin_files: Sequence[str], bindings: Sequence[str],
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
  folders = [os.path.join(folder, "") for folder in gin_internals.folders() if folder]
  return next((path.removeprefix(folder) for folder in folders
               if path.startswith(folder)), path)


def _texts(value) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif isinstance(value, (list, tuple, Mapping)):
    for member in value.values() if isinstance(value, Mapping) else value:
      yield from _texts(member)


def _files(text, gin_folder):
  """The files that a text names, beside its gin file or in the working folder."""
  for path in dict.fromkeys([os.path.join(gin_folder or ".", text), text]):
    if files := data_record.existing(path) or data_record.existing(f"{path}.index"):
      return files
    if text and "://" not in path and os.path.isdir(path):
      saved = complete.find(path)[-1:]
      return [f"{checkpoint}.index" for checkpoint in saved] or [
          file for name in sorted(tf.io.gfile.listdir(path))
          for file in data_record.existing(os.path.join(path, name))]
  return []
