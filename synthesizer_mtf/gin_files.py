"""Finds gin files and the files next to them, and fills gin as the trainer does."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import copy
import functools
import os
import pathlib
from typing import Any
from typing import NamedTuple

from absl import flags
from absl import logging
import gin
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_macros
from synthesizer_mtf import gin_names
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

# Parameters that name the user's files.
_NAMES_OF_FILES = {
    *(("synthesizer_mtf.tasks." + name, split) for name in ("text", "pairs")
      for split in ("train", "validation", "test")),
    ("synthesizer_mtf.tasks.vocabulary", "sentencepiece_model"),
    ("synthesizer_mtf.tasks.personachat", "directory"),
    ("synthesizer_mtf.tasks.dialogue_metrics", "word_vectors")}

_DEPRECATED = mesh_transformer.DEPRECATED_GIN_REFERENCES

Path = str | os.PathLike[str]

_RUN = "mesh_tensorflow.transformer.utils.run"

_ADDED = []  # The folders of `add_folder`.


class Parsed(NamedTuple):
  """What gin files and bindings gave.

  Attributes:
    given: (path, binding of gin's parser), in order.
    config: gin's own dicts when all was parsed, with copies as texts, to know whether
      a binding is still of then; None if all of them are.
  """
  given: list[tuple[str, Any]]
  config: dict[tuple[str, str], tuple[dict[str, Any], dict[str, str]]] | None

  def has(self, binding: Any) -> bool:
    """Whether gin held this `gin_origins.Binding` when all was parsed."""
    if self.config is None:
      return True
    group, then = self.config.get((binding.scope, binding.selector), (None, {}))
    now = gin_internals.bindings()[binding.scope, binding.selector]
    return group is now and then.get(binding.name) == repr(binding.value)


_PARSED: list[Parsed] = []  # Of the last `parse`.


def folder() -> str:
  """Returns the folder of the gin files, as a string.

  It is inside an installed package, and next to the package in a checkout.
  """
  package = pathlib.Path(__file__).resolve().parent
  inside = package / "gin"
  return str(inside if inside.is_dir() else package.parent / "gin")


def _beside(module):
  """The folder of gin files next to a module of Mesh TensorFlow or T5."""
  return os.path.join(os.path.dirname(module.__file__), "gin")


@functools.cache
def _add(path):
  gin.add_config_file_search_path(path)


def add_search_path() -> None:
  """Lets gin find `attention/r.gin`, and T5's files, from any directory."""
  _add(folder())
  _add(_beside(mesh_transformer))


def add_folder(path: str) -> None:
  """Lets gin find the files of one more folder, which counts as installed."""
  _add(path)
  if path not in _ADDED:
    _ADDED.append(path)


def parse(files: Path | Sequence[Path] = (), bindings: str | Sequence[str] = (),
          prefixes: Sequence[Path] = ()) -> None:
  """Fills gin with Mesh's defaults, gin files and bindings, as T5's main does.

  Args:
    files: a path, or a list of paths, searched for as in
      `synthesizer_mesh_transformer`.
    bindings: gin bindings, which override the files; a text, or a list of texts.
    prefixes: more folders of gin files.

  Raises:
    ValueError: a file does not exist or has a mistake, or a binding is wrong.
  """
  add_search_path()
  for path in prefixes:
    _add(os.path.expanduser(path))
  gin.clear_config()
  try:
    with checks.calling({"--gin_file": "`files`", "--gin_param": "`bindings`"}):
      _fill([*map(os.path.expanduser, _listed("files", files, (str, os.PathLike)))],
            _listed("bindings", bindings, (str,)))
  except BaseException:
    gin.clear_config()  # Half a configuration would train another model.
    raise


def _fill(paths, texts):
  check(paths, texts)
  with gin_names.without_logs():
    gin.parse_config_files_and_bindings(
        [_defaults(), *paths], texts, skip_unknown=_DEPRECATED, finalize_config=False)
  given = [*gin_names.given(paths, texts)]
  for change in with_folders, _in_order, _own_lengths:
    for parameter, value in change(given, gin_internals.bindings()).items():
      gin.bind_parameter(parameter, value)
  gin.finalize()
  gin_macros.check_read(own(given))
  _PARSED[:] = [Parsed(given, {
      where: (values, {name: repr(value) for name, value in values.items()})
      for where, values in gin_internals.bindings().items()})]


def parsed() -> Parsed | None:
  """What the last `parse` gave; None if gin has been cleared since, or never parsed."""
  config = gin_internals.bindings()
  if _PARSED and any(config.get(where) is group
                     for where, (group, _) in (_PARSED[0].config or {}).items()):
    return _PARSED[0]
  return None


def _listed(name: str, value: Any, kinds: tuple[type, ...]) -> list[str]:
  """Returns an argument as a list of strings; it may be one of them.

  Raises:
    ValueError: it is something else.
  """
  several: Any = [value] if isinstance(value, kinds) else value
  checks.require(
      isinstance(several, (list, tuple)) and all(
          isinstance(text, kinds) for text in several), name, value,
      "be a list of strings", "write it as [\"...\", \"...\"]")
  return list(map(os.fspath, several))


def _defaults():
  return os.path.join(_beside(utils), "defaults.gin")


def check(files: Sequence[str] | None, params: Sequence[str] | None,
          skip_unknown: bool | Collection[str] = ()) -> dict[gin_names.Key, Any]:
  """Checks the gin files and bindings of a command, before gin parses them.

  Args:
    files: the values of --gin_file.
    params: the values of --gin_param.
    skip_unknown: see `gin_names.check`; T5's deprecated names are added.

  Returns:
    what `gin_names.check` returns.

  Raises:
    ValueError: a path is not a regular file, or the file is not UTF-8; or
      `gin_names.check` finds a mistake.
  """
  for path in files or ():
    name = checks.called("--gin_file")
    checks.check_regular_file(name, path)
    if os.path.basename(path) == "cluster.gin" and not os.path.exists(path):
      raise checks.Error(
          f"{name} is {path!r}, which is gone: several processes run through JAX now, "
          "by jax.gin and `synthesizer_processes`, as docs/clusters.md explains.")
    if os.path.isdir(path):
      raise checks.Error(f"{name} is {path!r}, which is a folder; name a file in it, "
                         "such as its operative_config.gin.")
    if os.path.isfile(path):
      _check_text(path)
  return gin_names.check(
      [_defaults(), *(files or ())], params or (),
      skip_unknown is True or {*_DEPRECATED, *(skip_unknown or ())})


def _check_text(path):
  try:
    pathlib.Path(path).read_text(encoding="utf-8")
  except UnicodeDecodeError as error:
    raise checks.Error(f"{checks.called('--gin_file')} is {path!r}, whose byte "
                       f"{error.start} is not UTF-8; name a file of gin, or convert it "
                       "to UTF-8.") from None


def given_in_command() -> list[tuple[str, Any]]:
  """Returns (path, binding of gin's parser) of the command's gin files and bindings."""
  if "gin_file" not in flags.FLAGS or not flags.FLAGS.is_parsed():
    return []
  return [*gin_names.given(flags.FLAGS.gin_file or [], flags.FLAGS.gin_param or [])]


def own(given: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
  """Yields those (path, binding) that a user wrote.

  Bindings of installed gin files are left out, and those of an operative_config.gin.
  """
  folders = tuple(os.path.join(path, "") for path in installed())
  for path, binding in given:
    if not os.path.abspath(path).startswith(folders) and not _is_record(path):
      yield path, binding


def installed() -> list[str]:
  """The folders of installed gin files: ours, T5's, Mesh's and those added."""
  return [folder(), *_ADDED, _beside(utils), _beside(mesh_transformer)]


def _is_record(path):
  """Whether gin wrote a file, as T5 and its users name it."""
  return "operative_config" in os.path.basename(path)


@gin.config.register_finalize_hook
def change_command(config: gin_internals.Config) -> dict[str, Any]:
  """Applies the three changes below, which have the same arguments, to the command."""
  given = given_in_command()
  return {**with_folders(given, config), **_in_order(given, config),
          **_own_lengths(given, config)}


def with_folders(given: Iterable[tuple[str, Any]],
                 config: gin_internals.Config) -> dict[str, Any]:
  """Resolves paths relative to their gin file, so that a folder can be moved.

  It returns new bindings for the paths of files that exist in the folder of their gin
  file. Other paths stay relative to the working folder. `given` has the (path, binding)
  of each binding of gin files, in order.
  """
  bindings = {}
  for path, binding in given:
    key = (binding.scope, gin_names.full_name(binding.selector) or "", binding.arg_name)
    if key[1:] in _NAMES_OF_FILES and path != gin_names.FLAG and (
        binding.value == config.get(key[:2], {}).get(binding.arg_name)):
      bindings[parameter(*key)] = _beside_gin_file(path, binding.value)
  return bindings


def _in_order(given, config):
  """Lets a choice hold that comes after an operative_config.gin.

  gin writes each parameter there with its scope, as encoder/, and in gin a scope wins
  against a later binding without one.

  Returns:
    a dict of new bindings, in the scopes that the file binds.
  """
  recorded, asked = {}, {}
  for path, (scope, selector, name, _, _) in given:
    key = gin_names.full_name(selector) or "", name
    if name and key[0]:
      is_record = _is_record(path)
      (recorded if is_record else asked).setdefault(key, {})[scope] = None
      if is_record:
        asked.pop(key, None)  # A file that comes later wins.
  bindings = {}
  for key in recorded.keys() & asked.keys():
    selector, name = key
    old, new = ({scope: config.get((scope, selector), {}).get(name) for scope in scopes}
                for scopes in (recorded[key], asked[key]))
    for scope, value in winning(old, new, ".".join(key)).items():
      bindings[parameter(scope, *key)] = value
  return bindings


def _own_lengths(given, config):
  """Lets a user's own length of the inputs hold if classifier.gin comes after it.

  That file has to come after a model file, and binds both lengths.
  """
  lengths = [(path, binding) for path, binding in given
             if (binding.scope, gin_names.full_name(binding.selector)) == ("", _RUN) and
             binding.arg_name == "sequence_length"]
  mine = [binding.value for _, binding in own(lengths)
          if isinstance(binding.value, dict)]
  if not mine or os.path.abspath(lengths[-1][0]) != os.path.join(
      folder(), "classifier.gin"):
    return {}
  bound = config.get(("", _RUN), {}).get("sequence_length", {})
  return {f"{_RUN}.sequence_length": {
      **bound, "inputs": mine[-1].get("inputs", bound.get("inputs"))}}


def winning(recorded: dict[str, Any], asked: dict[str, Any],
            name: str) -> dict[str, Any]:
  """The values to bind where a choice overrides an operative_config.gin, by scope.

  Both are given as the values of a parameter by scope: those in that file, and those
  that were chosen later. Log lines call the parameter `name`.
  """
  values = {}
  for scope, other in {**recorded, **asked}.items():
    is_asked, value = nearest(scope, asked)
    if is_asked and (scope not in recorded or repr(value) != repr(other)):
      values[scope] = value
      if scope in recorded:
        logging.info("`%s` is %r, not %r as in operative_config.gin.",
                     parameter(scope, *name.rpartition(".")[::2]), value, other)
  return values


def nearest(scope: str, among: dict[str, Any]) -> tuple[bool, Any]:
  """Whether gin finds a binding in a scope, and its value: the innermost one."""
  while scope and scope not in among:
    scope = scope.rpartition("/")[0]
  return scope in among, among.get(scope)


def parameter(scope: str, selector: str, name: str) -> str:
  """The name of a parameter, as in a gin file."""
  return f"{scope + '/' if scope else ''}{selector}.{name}"


def _beside_gin_file(gin_file, value):
  """Puts the gin file's folder before each path of a file that is in the folder."""
  if isinstance(value, (list, tuple)):
    return [_beside_gin_file(gin_file, path) for path in value]
  if not isinstance(value, str) or os.path.isabs(value) or "://" in value:
    return value
  folder = os.path.dirname(gin_file)
  path = os.path.join(folder if "://" in folder else os.path.abspath(folder), value)
  return path if tf.io.gfile.exists(path) or tf.io.gfile.glob(path) else value


@contextlib.contextmanager
def restored(with_calls: bool = False) -> Iterator[None]:
  """Restores gin's bindings at the end of a `with` block.

  Args:
    with_calls: whether to forget the calls in the block, too. Otherwise they are in
      each operative_config.gin that is written later.
  """
  states = [gin_internals.bindings(), *([gin_internals.calls()] if with_calls else [])]
  before = [[(where, values, dict(values)) for where, values in state.items()]
            for state in states]
  last_parsed = [*_PARSED]
  try:
    yield
  finally:
    _PARSED[:] = last_parsed
    for state, groups in zip(states, before):
      state.clear()
      for where, values, copied in groups:
        values.clear()
        values.update(copied)
        state[where] = values  # The same dict, by which `parsed` knows it.


def bind(bindings: Mapping[str, Any] | None) -> None:
  """Binds values to parameters, also if gin is finalized."""
  with gin.unlock_config():
    for name, value in (bindings or {}).items():
      gin.bind_parameter(name, value)


def bound(parameter: str, default: Any) -> Any:
  """The value that gin would pass to a parameter, with references resolved.

  Args:
    parameter: a parameter, such as "utils.run.batch_size".
    default: the value to return if nothing is bound.
  """
  try:
    value = gin.query_parameter(parameter)
  except ValueError:
    return default
  # gin resolves references in the same way when it calls a configurable.
  return copy.deepcopy(value)
