"""Checks the syntax and the names of gin files and bindings, before gin parses them.

gin, Python and seqio find these mistakes, too. But they say neither which line is wrong
nor which known name is similar.
"""

import ast
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import importlib
import inspect
import itertools
import logging
import os
import pathlib
import re
import sys
import sysconfig
import tokenize
import traceback
from typing import Any

import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals

# The scope, the configurable and the parameter of a binding.
Key = tuple[str, str, str]
FLAG = "--gin_param"


def full_name(name: str) -> str | None:
  """The full name of a configurable; None if there is none or more than one."""
  selectors = gin_internals.registry().matching_selectors(name)
  return selectors[0] if len(selectors) == 1 else None


def import_modules(names: Sequence[str] | None) -> None:
  """Imports the modules of --module_import, also those in the working folder.

  Raises:
    ValueError: there is no such module, or it cannot be imported.
  """
  if not getattr(sys.flags, "safe_path", False) and os.getcwd() not in sys.path:
    # As with `python -m`, but last, so that no file hides an installed module.
    sys.path.append(os.getcwd())
  for name in names or ():
    try:
      importlib.import_module(name)
    except ImportError as error:
      raise checks.Error(
          f"{error}; correct --module_import, or install the module.") from error
    except (SyntaxError, ValueError, NameError, AttributeError, TypeError) as error:
      raise checks.Error(
          f"--module_import is {name!r}, which cannot be imported: "
          f"{_place_in_modules(error)}{_sentence(error)}; correct the module."
          ) from error


def _place_in_modules(error):
  """Where a module of the user raised an error, as "FILE, line 3: "."""
  if isinstance(error, SyntaxError):
    return ""  # Its message ends in the place.
  packages = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib"))
  own = [frame for frame in traceback.extract_tb(error.__traceback__)
         if not frame.filename.startswith((*packages, "<", os.path.dirname(__file__)))]
  return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""


def statements(name: str, delegate: gin.config.ParserDelegate,
               within: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
  """Returns (path, statement of gin's parser) for a gin file and those it includes.

  Gin looks for the name in its folders; the files `within` include this one.

  Raises:
    ValueError: there is no such file, it is not in gin's syntax, or includes itself.
  """
  path, text = _read(name)
  if path in within:
    circle = " includes ".join([*within[within.index(path):], path])
    raise checks.Error(f"{circle}, and so on; remove one of these includes.")
  return _with_includes(text, path, delegate, within)


def _with_includes(text, path, delegate, within=()):
  for statement in _parsed(text, path, delegate):
    if isinstance(statement, gin.config_parser.IncludeStatement):
      yield from statements(statement.filename, delegate, (*within, path))
    else:
      yield path, statement


def given(files: Sequence[str], bindings: Sequence[str], where: str = FLAG
          ) -> Iterator[tuple[str, Any]]:
  """Yields (path, binding of gin's parser) for all bindings of a command, in order.

  Gin looks for the files in its folders. The bindings come last, with the path `where`.

  Raises:
    ValueError: there is no such file, or the syntax is not gin's.
  """
  delegate = gin.config.ParserDelegate(skip_unknown=True)
  for path, statement in itertools.chain(
      *(statements(name, delegate) for name in files),
      _with_includes("\n".join(bindings), where, delegate)):
    if isinstance(statement, gin.config_parser.BindingStatement):
      yield path, statement


def check(files: Sequence[str], bindings: Sequence[str],
          skip_unknown: bool | Collection[str]) -> dict[Key, Any]:
  """Checks gin files and bindings, and imports the modules that the files import.

  Args:
    files: paths, which gin looks for in its folders.
    bindings: gin bindings, which override the files.
    skip_unknown: whether gin skips unknown configurables, or the names to skip.

  Returns:
    a dict from keys to values; the last binding counts. A macro's key has the
    parameter "".

  Raises:
    ValueError: a file, a configurable or a parameter does not exist; or a macro has no
      value; or a value is still `%gin.REQUIRED`; or the syntax is not gin's.
  """
  delegate, values, macros = _Delegate(skip_unknown), {}, {}
  for path, statement in itertools.chain.from_iterable([
      *(statements(name, delegate) for name in files),
      _with_includes("\n".join(bindings), FLAG, delegate)]):
    key = _take(statement, path, values, delegate)
    macros[key] = path, statement, delegate.taken_macros()
  _check_macros({key: macros[key] for key in values}, values)
  for (scope, selector, parameter), value in values.items():
    if str(value) == "%gin.REQUIRED":
      names = filter(None, [selector.rpartition(".")[2], parameter])
      name = "/".join(filter(None, [scope, ".".join(names)]))
      raise checks.Error(
          f"`{name}` is %gin.REQUIRED; bind it by {checks.called(FLAG)}.")
  return values


def _check_macros(uses, values):
  """Checks that something binds each macro; gin would name neither file nor line.

  `uses` has, by key, (path, statement, names of the macros in the value).
  """
  keys = [*values, *((*key, "") for key in gin_internals.bindings())]
  known = {scope if selector == "gin.macro" else "/".join(filter(None, [
      scope, selector])) for scope, selector, parameter in keys
           if not parameter or selector == "gin.macro"}
  for path, statement, names in uses.values():
    for name in sorted(names - known):
      raise checks.Error(
          f"{at(path, statement.location.line_num)} has %{name}, but nothing binds "
          f"`{name}`; bind it, too.{checks.did_you_mean(name, known, near_only=True)}")


class _Delegate(gin.config.ParserDelegate):
  """Makes references, and names the configurables that resemble an unknown one."""

  def __init__(self, skip_unknown):
    super().__init__(skip_unknown)
    self._skip, self._macros = skip_unknown, set()

  def configurable_reference(self, scoped_selector, evaluate):
    try:
      return super().configurable_reference(scoped_selector, evaluate)
    except ValueError as error:
      raise checks.Error(_sentence(error) + _near(scoped_selector)) from None

  def macro(self, name):
    reference = super().macro(name)
    if reference.scoped_selector.endswith("gin.macro"):  # Otherwise a constant.
      self._macros.add(name)
    return reference

  def taken_macros(self):
    """Returns the names of the macros in values since the last call."""
    macros, self._macros = self._macros, set()
    return macros

  def skip_all(self):
    """Accepts all unknown configurables from now on."""
    self._skip = self._skip_unknown = True

  def skips(self, selector):
    """Returns whether gin skips a binding, because its configurable is unknown."""
    return not gin_internals.registry().matching_selectors(selector) and (
        self._skip is True or bool(self._skip) and selector in self._skip)


def _take(statement, where, values, delegate):
  """Adds a binding to a dict and returns its key, or imports a module."""
  if isinstance(statement, gin.config_parser.ImportStatement):
    if statement.module.startswith("__gin__"):
      delegate.skip_all()  # The file names configurables by Python's modules.
    else:  # T5's main lets gin skip the modules that older versions had.
      with contextlib.suppress(ImportError):
        importlib.import_module(statement.module)
  elif isinstance(statement, gin.config_parser.BindingStatement):
    scope, selector, parameter, value, location = statement
    if parameter and delegate.skips(selector):
      return None
    if parameter:
      _check_parameter((scope, selector, parameter), at(where, location.line_num))
      selector = full_name(selector) or selector
    key = scope, selector, parameter or ""
    values[key] = value
    return key
  return None


def _check_parameter(key, where):
  try:
    gin.config.ParsedBindingKey.parse(key)
  except ValueError as error:
    _, selector, parameter = key
    if gin_internals.registry().matching_selectors(selector):
      known = inspect.signature(gin.get_configurable(selector)).parameters
      near = checks.did_you_mean(parameter, {*known} - {"self"})
    else:
      near = _near(selector)
    raise checks.Error(f"{where}: {_sentence(error)}{near}") from None


def _sentence(error):
  """The first line of a message; gin adds others."""
  return str(error).partition("\n")[0]


def _near(name):
  """A sentence with the names of configurables that resemble an unknown name."""
  if name == "decode_from_files":  # In T5's infer_multi_file.gin.
    return (" Mesh TensorFlow does not have this function of T5's "
            "infer_multi_file.gin; decode each file by a command of its own, with "
            "infer.gin.")
  if name in ("Cluster", "synthesizer_mtf.Cluster"):
    return (" Several processes run through JAX now: leave out these bindings, and add "
            "jax.gin and `synthesizer_processes`, as docs/clusters.md explains.")
  known = [selector.rpartition(".")[2]
           for selector, _ in gin_internals.registry().items()]
  near = checks.did_you_mean(re.split("[./]", name)[-1], known)
  module = name.rpartition("/")[2].rpartition(".")[0]
  if near and (not module or any(f".{module}." in f".{selector}" for selector, _ in
                                 gin_internals.registry().items())):
    return near
  return (f"{near} If a module of your own has it, name the module by "
          f"{checks.called('--module_import')}.")


def at(where: str, line: int | str | None) -> str:
  """Says where a binding is, as "FILE, line 3" or "--gin_param"."""
  return checks.called(where) if where == FLAG else f"{where}, line {line}"


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
  """Drops the error that gin logs for each folder that lacks a file."""
  before = logging.root.manager.disable
  logging.disable(max(before, logging.ERROR))
  try:
    yield
  finally:
    logging.disable(before)


def _read(name):
  """Returns (path, text) of a gin file, from the first of gin's folders that has it."""
  folders = gin_internals.folders()
  for folder in [""] if os.path.isabs(name) else folders:
    path = os.path.join(folder, name)
    for reader, exists in gin_internals.readers():
      with without_logs():
        is_there = exists(path)
      if is_there:
        with reader(path) as f:
          text = f.read()
        return path, text if isinstance(text, str) else text.decode()
  if os.path.basename(name) == "operative_config.gin":
    raise checks.Error(f"Unable to open file: {name}; a training writes it into the "
                       "model's folder, so train there first, or name another folder.")
  known = [str(path.relative_to(folder)) for folder in filter(None, folders)
           for path in pathlib.Path(folder).rglob("*.gin")]
  raise checks.Error(f"Unable to open file: {name}; name a gin file."
                     f"{checks.did_you_mean(name, known, near_only=True)}")


def _parsed(text, where, delegate):
  """Yields gin's statements.

  Raises:
    ValueError: a line is not in gin's syntax.
  """
  parser: Any = None
  try:
    parser = gin.config_parser.ConfigParser(text, delegate)
    yield from parser
  except checks.Error as error:
    line = parser.current_token.start[0]
    raise checks.Error(f"{at(where, line)}: {_sentence(error)}") from None
  except tokenize.TokenError as error:
    said, *place = error.args
    line = place[0][0] if place else "?"
    raise checks.Error(f"{at(where, line)}: {said}; close each quote and bracket."
                       ) from None
  except SyntaxError as error:
    line = (error.text or "").strip()
    raise checks.Error(f"{at(where, error.lineno)}: {error.msg} {line}; "
                       f"{_remedy(line)}.") from None


def _remedy(line):
  """What to write instead of a line that is not in gin's syntax."""
  key, _, value = map(str.strip, line.partition("="))
  if not value or not re.fullmatch(r"[\w./]+", key) or _is_literal(value):
    return "write each binding as PARAMETER = VALUE, on a line of its own"
  known = value.title() if value.lower() in ("true", "false", "none") else repr(value)
  meant = f"{known} or " if re.fullmatch(r"[\w./*~-]+", value) else ""
  return f"write {meant}a number, a string in quotes, @FUNCTION or %MACRO"


def _is_literal(value):
  try:
    ast.literal_eval(value)
  except (SyntaxError, ValueError):
    return False
  return True
