"""The one rule of precedence of settings that a trained model's folder has, too.

docs/settings.md has the rule as a table. gin holds what a person has bound, and weaker
than these the values that nobody has chosen (see `gin_origins`). A folder's
operative_config.gin and vocabulary.json come between them: `settle` takes from them
what no person has bound, and logs in one line what it takes, and where the two differ.
If what a person has bound changes the shapes of the folder's variables, it raises.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import functools
import os
from typing import Any
from typing import NamedTuple

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_macros
from synthesizer_mtf import gin_names
from synthesizer_mtf import gin_origins
from synthesizer_mtf.attention import notation
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

RECORD = "operative_config.gin"
ATTENTION = stack.SELECTOR, "attention"
_TASK = "t5.models.mesh_transformer.get_vocabulary.mixture_or_task_name"
_VOCABULARY = "synthesizer_mtf.tasks.vocabulary.sentencepiece_model"
# A task with the vocabulary that all our tasks of text share.
_TEXT_PAIRS = "synth_text_pairs"

# What a record says of its own training only: its start, its evaluations and its seed,
# and the arguments of the object that trained.
_NOT_TAKEN = {"synthesizer_mtf.warm_start", "synthesizer_mtf.train_and_eval",
              "t5.models.mtf_model.MtfModel"}
_EVALUATION_SEED = "t5.models.mesh_transformer.mesh_eval_dataset_fn", "seed"

_DTYPES = "mesh_tensorflow.transformer.utils.get_variable_dtype"
ACTIVATIONS = _DTYPES, "activation_dtype"
# The log leaves out dtypes, which T5 binds for its device, and what T5's command alone
# reads.
_SELDOM_READ = {
    _DTYPES, "mesh_tensorflow.transformer.utils.run",
    "t5.models.mesh_transformer.get_vocabulary",
    "t5.models.mesh_transformer.mesh_train_dataset_fn"}
_READ = {"model_type", "pack", "seed", "sequence_length", "use_cached"}

_SIZES = ("num_layers", "d_model", "d_ff", "num_heads", "d_kv")
_MODULES = ("mesh_tensorflow.transformer.", "synthesizer_mtf.attention.")
# Parameters of these modules that decide the names or shapes of variables.
_SHAPES = {
    "a", "b", "d_model", "hidden_size", "kernel_size", "kernels", "key_value_size",
    "num_heads", "num_layers", "num_memory_heads", "pointwise",
    "rank", "relative_attention_num_buckets", "relative_attention_type", "share_heads",
    "share_kv", "share_layers", "share_query", "shared_embedding",
    "shared_embedding_and_softmax_weights", "shared_kv", "tile_length", "use_bias",
    "vocab_divisor", "weights", "width"}
_LENGTH = "max_length"  # It decides shapes in the attentions of this package alone.
_BY_MACROS = {"num_heads", "key_value_size"}  # None is T5's macro there.

_Key = tuple[str, str]  # A selector and a parameter.
_Scopes = dict[_Key, dict[str, Any]]  # Values by scope.


class Folder(NamedTuple):
  """The folder of a trained model.

  Attributes:
    path: its path.
    restores: whether its variables are restored as they are; otherwise another
      attention may start from them.
    argument: what messages call it.
  """
  path: str
  restores: bool = True
  argument: str = "--model_dir"

  @property
  def record(self) -> str:
    return os.path.join(self.path, RECORD)


def settle(folders: Sequence[Folder], extra: str | Sequence[str] | None = None,
           attention: Any = None) -> None:
  """Binds in gin what holds for a call; the caller restores gin afterwards.

  Args:
    folders: those whose records count; an earlier one counts more.
    extra: a text of bindings that are stronger than what gin holds, or a list of texts.
    attention: an attention that is stronger than all bindings; None for none.

  Raises:
    ValueError: what is bound would change the shapes of the variables that are
      restored.
  """
  _bind_extra(extra)
  if attention is not None:
    _bind_everywhere({"": attention})
  chosen, earlier = by_parameter(gin_origins.chosen()), {}
  for folder in folders:
    if tf.io.gfile.exists(folder.record):
      recorded = _read(folder.record)
      _check_shapes(folder, recorded, chosen, attention is not None)
      _take(folder, recorded, chosen, earlier)
      for key, scopes in by_parameter(gin_origins.bindings(recorded)).items():
        earlier[key] = {**scopes, **earlier.get(key, {})}
  for folder in folders:
    find_vocabulary(folder.path)
  gin_macros.check_read(_given(extra))


def check_attentions(extra: str | Sequence[str] | None) -> None:
  """Raises a ValueError if `extra`, as in `settle`, or gin names no attention."""
  given = [(binding.scope, binding.value) for binding in _attentions(extra)]
  for scope, value in (*stack.choices().items(), *given):
    if value is not None:
      notation.check_choice(gin_files.parameter(
          scope, "synthesizer_stack", ATTENTION[1]), value)


def check_named(model_dir: str) -> None:
  """Raises a ValueError if gin names no attention, but a model's folder has one."""
  record = Folder(model_dir).record
  if stack.bound() or not (complete.find(model_dir) and tf.io.gfile.exists(record)):
    return
  recorded = by_parameter(gin_origins.bindings(_read(record))).get(ATTENTION, {})
  values = [value for value in recorded.values() if value is not None]
  if values:
    raise checks.Error(
        f"--model_dir is {model_dir!r}, a model with the attention "
        f"{' and '.join(dict.fromkeys(map(repr, values)))}, but none is bound; add "
        f"--gin_file={record}, bind `synthesizer_stack.attention`, or name another "
        "folder.")


def _lines(extra):
  return [extra] if isinstance(extra, str) else [*(extra or ())]


def _given(extra):
  """The pairs ("extra_gin_bindings", binding of gin's parser) of such a text."""
  return [*gin_names.given([], _lines(extra), "extra_gin_bindings")]


def _attentions(extra):
  return [binding for _, binding in _given(extra) if (
      gin_names.full_name(binding.selector), binding.arg_name) == ATTENTION]


def _bind_extra(extra):
  """Binds `extra_gin_bindings`, whose attention holds in all scopes, as an argument."""
  with gin.unlock_config():
    gin.parse_config("\n".join(_lines(extra)))
  scopes = [binding.scope for binding in _attentions(extra)]
  if scopes:
    _bind_everywhere({
        scope: gin_internals.bindings()[scope, stack.SELECTOR]["attention"]
        for scope in scopes})


def _bind_everywhere(attentions):
  """Binds attentions by their scopes, also in scopes within these."""
  for scope in [*stack.bound()]:
    if gin_files.nearest(scope, attentions)[0]:
      del gin_internals.bindings()[scope, stack.SELECTOR]["attention"]
  gin_files.bind({gin_files.parameter(scope, *ATTENTION): value
                  for scope, value in attentions.items()})


def _read(path):
  """The bindings of a record alone, as gin's configuration."""
  with gin_files.restored():
    gin_internals.bindings().clear()
    with gin.unlock_config():
      gin.parse_config_file(
          path, skip_unknown=mesh_transformer.DEPRECATED_GIN_REFERENCES)
    gin_files.bind(gin_files.with_folders(
        gin_names.given([path], []), gin_internals.bindings()))
    return {where: dict(values) for where, values in gin_internals.bindings().items()
            if where[1] not in _NOT_TAKEN}


def by_parameter(bindings: Iterable[gin_origins.Binding]) -> _Scopes:
  """Returns the values of bindings, by parameter and then by scope."""
  values: _Scopes = {}
  for binding in bindings:
    values.setdefault(binding.key, {})[binding.scope] = binding.value
  return values


def _among(binding, values):
  """Whether a binding's parameter has a value here, and the value: the innermost."""
  scopes = values.get(binding.key, {})
  if binding.key == gin_origins.MACRO:
    return binding.scope in scopes, scopes.get(binding.scope)
  return gin_files.nearest(binding.scope, scopes)


def _take(folder, recorded, chosen, earlier):
  """Binds what a record says, as gin's configuration, and logs what this changes.

  The bindings of a person, by parameter, win, and so do those of earlier records.
  """
  before = by_parameter(gin_origins.bindings())
  own = by_parameter(gin_origins.bindings(recorded))
  files, gives, others = gin_origins.unchosen(), set(), []
  new: dict[tuple[str, str, str], Any] = {}
  for binding in gin_origins.bindings(recorded):
    is_chosen, value = _among(binding, chosen)
    was_bound, old = _among(binding, before)
    default = gin_internals.default(binding.selector, binding.name, object())
    if is_chosen:
      if repr(value) != repr(binding.value) and binding.value != default:
        others.append(f"`{_name(binding)}` is {_shown(value)}, which is bound, and not "
                      f"{_shown(binding.value)}")
      continue
    is_default = not was_bound and all(
        other == default for other in own[binding.key].values())
    if binding.key == _EVALUATION_SEED or _among(binding, earlier)[0] or is_default:
      continue
    new[binding[:3]] = binding.value
    if repr(binding.value) == repr(old if was_bound else default):
      continue
    if binding.selector not in _SELDOM_READ or binding.name in _READ:
      gives.add(_name(binding))
    if file := files.get(binding[:3]):
      others.append(f"`{_name(binding)}` is {_shown(binding.value)}, and not "
                    f"{_shown(old)} as in {file}")
  with gin.unlock_config():
    for key, value in new.items():
      gin.bind_parameter(key, value)
  if gives or others:
    logging.info("%s gives %s%s.", folder.record,
                 ", ".join(sorted(gives)) or "nothing new",
                 "".join(f"; {difference}" for difference in dict.fromkeys(others)))


def _name(binding):
  """The short name of a parameter, without its scope; that of a macro."""
  if binding.key == gin_origins.MACRO:
    return binding.scope
  return f"{gin_internals.registry().minimal_selector(binding.selector)}.{binding.name}"


def _shown(value):
  return repr(value) if len(repr(value)) < 80 else f"{repr(value)[:76]} ..."


def _check_shapes(folder, recorded, chosen, by_argument):
  """Raises if bindings change the shapes of the variables that a folder gives."""
  now = gin_internals.bindings()
  wrong = {}
  for binding in gin_origins.bindings(recorded):
    is_chosen, value = _among(binding, chosen)
    if is_chosen and repr(value) != repr(binding.value) and (
        _decides_shapes(binding, folder.restores)):
      wanted, has = (gin_internals.resolved(now, value),
                     gin_internals.resolved(recorded, binding.value))
      if _differ(binding, wanted, has):
        is_argument = by_argument and binding.key == ATTENTION
        name = "attention" if is_argument else _name(binding)
        wrong[name] = f"`{name}` is {wanted!r}, but {has!r} there"
  if wrong:
    raise checks.Error(
        f"`{checks.called(folder.argument)}` is {folder.path!r}, whose variables "
        f"have other shapes than what is bound: {'; '.join(wrong.values())}; leave "
        f"{'this' if len(wrong) == 1 else 'these'} out, or name another folder"
        f"{_remedy(wrong, folder)}.")


def check_folder(model_dir: str) -> None:
  """Raises if gin holds other sizes than the record of a folder with a checkpoint.

  T5's command reads no folder by itself; all that it binds is compared.
  """
  folder = Folder(model_dir)
  if complete.find(model_dir) and tf.io.gfile.exists(folder.record):
    _check_shapes(folder, _read(folder.record),
                  by_parameter(gin_origins.bindings()), False)


def _remedy(wrong, folder):
  if folder.restores and any(name.endswith("attention") for name in wrong):
    return (" (to train another attention from its variables, fine-tune in a folder "
            "of its own)")
  return ""


def _decides_shapes(binding, restores):
  if binding.key == gin_origins.MACRO:
    return binding.scope.rpartition("/")[2] in _SIZES
  if not restores:
    return False
  module = getattr(
      gin_internals.registry()[binding.selector].wrapped, "__module__", "")
  return binding.key == ATTENTION or module.startswith(_MODULES) and (
      binding.name in _SHAPES or
      binding.name == _LENGTH and not module.startswith(_MODULES[0]))


def _differ(binding, wanted, has):
  if binding.name in _BY_MACROS and None in (wanted, has):
    return False
  if binding.key == ATTENTION:
    wanted, has = (sorted({*map(repr, value)}) if isinstance(value, (list, tuple)) and
                   len({*map(repr, value)}) == 1 else value for value in (wanted, has))
    wanted, has = ([repr(value)] if isinstance(value, str) else value
                   for value in (wanted, has))
  return repr(wanted) != repr(has)


def find_vocabulary(folder: str) -> bool:
  """Binds the vocabulary of vocabulary.json where gin names neither task nor path.

  `MtfModel` of older versions recorded no task, and an environment variable that named
  the vocabulary of a training is in no operative_config.gin. Returns whether the folder
  names a vocabulary.
  """
  path = vocabulary_record.path_of(folder)
  if path is None:
    return False
  if gin_files.bound(_VOCABULARY, None) is None:
    logging.info("%s gives the vocabulary %r.",
                 os.path.join(folder, vocabulary_record.NAME), path)
    gin_files.bind({_VOCABULARY: path})
  if gin_files.bound("%MIXTURE_NAME", None) is None and (
      gin_files.bound(_TASK, None) is None):
    gin_files.bind({_TASK: _TEXT_PAIRS})
  return True


def reading_nothing_again(read: Any) -> Any:
  """Wraps T5's reader of a record; where there is none, T5's own error remains."""
  @functools.wraps(read)
  def wrapped(model_dir):
    if not tf.io.gfile.exists(os.path.join(model_dir, RECORD)):
      read(model_dir)

  return wrapped


def dtype_lines(extra: str | Sequence[str] | None) -> list[str]:
  """Returns the bindings of `extra` that T5's own bindings of dtypes replace."""
  return [f"{_DTYPES}.{binding.arg_name} = {binding.value!r}"
          for _, binding in _given(extra)
          if gin_names.full_name(binding.selector) == _DTYPES]
