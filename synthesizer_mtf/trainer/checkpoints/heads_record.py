"""Compares the heads of a model with those of a checkpoint, which shapes do not tell.

q is [d_model, heads * d_kv], so 2 heads of 8 and 4 heads of 4 have equal shapes. Each
training writes both numbers into operative_config.gin, beside the checkpoints; those of
T5's published models are there, too.
"""

from collections.abc import Iterator
import os

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_names
import tensorflow.compat.v1 as tf

_NAME = "operative_config.gin"
_MACROS = {"num_heads": "num_heads", "key_value_size": "d_kv"}

# From (scope, class of layers) to {"num_heads": …, "key_value_size": …}.
Heads = dict[tuple[str, str], dict[str, int]]


def check_restored(folder: str) -> None:
  """Raises a ValueError if a folder's model has other heads than the one just built.

  Without an operative_config.gin nothing is compared.
  """
  for name, now, then in _differences(_built(), _recorded(folder)):
    raise checks.Error(
        f"the model in {folder!r} was trained with {name} of {then}, by its {_NAME}, "
        f"but now it has {now}; {_remedy(name)}, or train another model in another "
        f"`{checks.called('--model_dir')}`.")


def check_start(path: str) -> None:
  """Raises a ValueError if a warm start begins from a checkpoint with other heads.

  Where nothing tells its heads, the log says so.
  """
  ours, theirs = _built(), _recorded(os.path.dirname(path))
  for name, now, then in _differences(ours, theirs):
    raise checks.Error(
        f"the checkpoint {path!r} has {name} of {then}, by the {_NAME} beside it, but "
        f"the model has {now}; {_remedy(name)}.")
  if ours and not all(_same_place(key, theirs) for key in ours):
    logging.warning(
        "No %s beside %s tells the heads of its layers, and shapes do not differ "
        "between 2 heads of 8 and 4 of 4; they are taken for %s.", _NAME, path,
        " and ".join(sorted({_shown(sizes) for sizes in ours.values()})))


def _built():
  """The heads of the layers that have just been made."""
  return _heads_in(gin.operative_config_str())


def _recorded(folder):
  path = os.path.join(folder, _NAME)
  if not tf.io.gfile.exists(path):
    return {}
  with tf.io.gfile.GFile(path) as f:
    return _heads_in(f.read())


def _heads_in(text: str) -> Heads:
  """The heads that an operative_config.gin tells; none if it is not one."""
  macros, values = {}, {}
  try:
    for _, (scope, selector, name, value, _) in gin_names.given([], [text]):
      if not name:
        macros[selector] = value
      elif name in _MACROS:
        values[scope, selector.rpartition(".")[2], name] = value
  except ValueError as error:
    logging.warning("%s does not tell the heads: %s", _NAME, error)
  heads: Heads = {}
  for (scope, cls, name), value in values.items():
    # Without a value, a layer takes that of the macro.
    macro = _MACROS[name] if value is None else str(value).removeprefix("%")
    size = macros.get(macro, value)
    if checks.is_whole(size):
      heads.setdefault((scope, cls), {})[name] = int(size)
  return {key: sizes for key, sizes in heads.items() if len(sizes) == len(_MACROS)}


def _differences(ours: Heads, theirs: Heads) -> Iterator[tuple[str, str, str]]:
  """Yields (layers, our heads, their heads) of layers whose heads differ."""
  for key, name in _names(ours):
    known = _same_place(key, theirs)
    if known and ours[key] != known:
      yield name, _shown(ours[key]), _shown(known)


def _same_place(key, theirs):
  """The heads of a class in a scope; of others there, if all are the same; or None."""
  scope, _ = key
  while key not in theirs:
    there = [sizes for (other, _), sizes in theirs.items() if other == scope]
    if there:
      return there[0] if all(sizes == there[0] for sizes in there) else None
    if not scope:
      return None
    scope = scope.rpartition("/")[0]
  return theirs[key]


def _names(heads):
  return [(key, "/".join(filter(None, key))) for key in sorted(heads)]


def _shown(sizes):
  return f"{sizes['num_heads']} heads of {sizes['key_value_size']}"


def _remedy(name):
  return (f"bind `{name}.num_heads` and `{name}.key_value_size`, or the macros "
          "num_heads and d_kv, to those of the checkpoint")
