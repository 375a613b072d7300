"""English text that is on every machine: CPython's own documentation.

This module reads the text from the source files of the standard library. It imports
only `pydoc_data.topics`, which holds nothing but text.
"""

import ast
import hashlib
import os
import pydoc_data.topics
import re
import sysconfig
import warnings

# Folders of the standard library without documentation of their own.
_SKIPPED = frozenset([
    "__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3",
    "pydoc_data", "site-packages", "test", "tests", "turtledemo"])

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documents() -> dict[str, str]:
  """Returns {name: text}: manual topics and modules, in a fixed order."""
  texts = {f"topic {name}": text
           for name, text in sorted(pydoc_data.topics.topics.items())}
  root = sysconfig.get_paths()["stdlib"]
  for path in _source_files(root):
    texts[os.path.relpath(path, root)] = _docstrings(path)
  return texts


def _source_files(root):
  """Yields the paths of the standard library's modules, sorted."""
  for folder, folders, names in os.walk(root):
    folders[:] = sorted(
        f for f in folders if f not in _SKIPPED and not f.startswith("config-"))
    for name in sorted(names):
      if name.endswith(".py"):
        yield os.path.join(folder, name)


def _docstrings(path):
  """Returns the documentation strings of a source file, as one text."""
  with open(path, "rb") as f, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tree = ast.parse(f.read())
  docstrings = [ast.get_docstring(node) for node in ast.walk(tree)
           if isinstance(node, _DOCUMENTED)]
  return "\n\n".join(filter(None, docstrings))


def is_held_out(name: str, percent: int) -> bool:
  """Returns whether a document is in the share that is held out for validation."""
  digest = hashlib.sha256(name.encode("utf-8")).digest()
  return int.from_bytes(digest[:4], "big") % 100 < percent


def split(held_out_percent: int = 10) -> tuple[list[str], list[str]]:
  """Splits the text by document, so that no module is on both sides.

  Args:
    held_out_percent: the share of documents to hold out.

  Returns:
    (train, validation): lists of paragraphs, each on one line. No paragraph occurs
    twice.
  """
  train, validation, seen = [], [], set()
  for name, text in documents().items():
    side = validation if is_held_out(name, held_out_percent) else train
    for paragraph in _paragraphs(text):
      if paragraph not in seen:
        seen.add(paragraph)
        side.append(paragraph)
  return train, validation


def _paragraphs(text):
  """Yields the paragraphs of prose, each on one line, without code."""
  for block in re.split(r"\n\s*\n", text):
    line = " ".join(block.split())
    letters = sum(c.isalpha() or c == " " for c in line)
    if len(line) >= 60 and letters > 0.85 * len(line) and line.isascii():
      yield line
