"""Passes over lines of older versions of T5 and Mesh TensorFlow in gin files.

Published models have an operative_config.gin of the version that trained them. T5 skips
bindings of functions that are gone, but neither parameters that are gone from functions
that are still there, nor references to an old vocabulary. Such a line is passed over,
with a warning, if it means nothing today, and is an error if it means something.
"""

from collections.abc import Iterator
import contextlib
import importlib.util
import io
import re
import tokenize
from typing import Any

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf import patches

# T5's vocabulary until version 0.7. T5's command and its datasets take the vocabulary
# of the task, whatever `utils.run.vocabulary` is.
_OLD_MODULE = "t5.data.sentencepiece_vocabulary"
_UNIVERSAL = "use_universal_transformer"
_CUSTOM_OPS = "use_custom_ops"
_WORDS = re.compile(f"{re.escape(_OLD_MODULE)}|{_UNIVERSAL}|{_CUSTOM_OPS}")

_BOM = "\ufeff"  # Some editors begin files of UTF-8 with it.

_warned: set[str] = set()
_replaced: list[tuple[Any, Any]] = []  # gin's readers, as `gin_internals.readers`.


def apply() -> None:
  """Makes gin pass over these lines, however it reads a file."""
  if not _replaced:
    _replaced.extend(gin_internals.readers())
    patches.assign("file readers", gin.config, [(_open, _exists)])


def _reader(path):
  for reader, exists in [*_replaced, *gin_internals.readers()]:
    # gin looks for models/t5.gin in Python's packages, too, and raises a TypeError if
    # Python's path has a folder models without an __init__.py.
    with contextlib.suppress(TypeError):
      if reader is not _open and exists(path):
        return reader
  return None


def _exists(path):
  return bool(_reader(path))


@contextlib.contextmanager
def _open(path: str) -> Iterator[io.StringIO]:
  """Opens a gin file by the first other reader that can, without the old lines.

  A byte order mark at its beginning is no part of the text.
  """
  with _reader(path)(path) as f:
    text = f.read()
  text = text if isinstance(text, str) else text.decode()
  file = io.StringIO(current(text.removeprefix(_BOM), path))
  file.name = path  # gin names it in messages.
  yield file


def current(text: str, path: str) -> str:
  """Empties the lines of a gin file that mean nothing today, and names them once.

  The text keeps the number of its lines; `path` is that of messages.

  Raises:
    ValueError: a line asks for what this version of Mesh TensorFlow does not have.
  """
  if not _WORDS.search(text):
    return text
  lines, passed = text.splitlines(), []
  for statement in _statements(text):
    first = statement.location.line_num - 1
    if not _is_past(statement, f"{path}, line {first + 1}"):
      continue
    end = first + 1
    while lines[end - 1].endswith("\\"):
      end += 1
    shown = " ".join(line.strip(" \\") for line in lines[first:end])
    passed.append(f"`{shown}` in line {first + 1}")
    lines[first:end] = [""] * (end - first)
  if passed and path not in _warned:
    _warned.add(path)
    logging.warning(
        "%s has lines of an older T5 or Mesh TensorFlow, which mean nothing today and "
        "are passed over: %s.", path, "; ".join(passed))
  return "\n".join([*lines, ""])


def _statements(text):
  # gin itself says what is wrong in a text.
  with contextlib.suppress(SyntaxError, ValueError, tokenize.TokenError):
    yield from gin.config_parser.ConfigParser(
        text, gin.config.ParserDelegate(skip_unknown=True))


def _is_past(statement, where):
  """Whether a statement means nothing today; raises if it would mean something."""
  if isinstance(statement, gin.config_parser.ImportStatement):
    return statement.module == _OLD_MODULE
  if not isinstance(statement, gin.config_parser.BindingStatement):
    return False
  _, selector, name, value, _ = statement
  if (selector.rpartition(".")[2], name) == ("make_layer_stack", _UNIVERSAL):
    if value is not False:
      raise checks.Error(
          f"{where}: `make_layer_stack.{name}` is {value!r}, but Mesh TensorFlow no "
          "longer has this parameter; leave the line out, and add "
          "--gin_file=stacks/universal.gin for a Universal Transformer.")
    return True
  if (selector.rpartition(".")[2], name) == ("pack_dataset", _CUSTOM_OPS):
    return value is True and not has_custom_ops()  # They pack faster, and alike.
  return selector.startswith(_OLD_MODULE) or name == "vocabulary" and getattr(
      value, "selector", "").startswith(_OLD_MODULE)


def has_custom_ops() -> bool:
  """Whether the package is there with the operations of pack_dataset.use_custom_ops."""
  return importlib.util.find_spec("tensor2tensor") is not None
