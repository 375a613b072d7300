"""gin's bindings for `calibrate`: the attention of each stack, and the task."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import stack

_STOCK = "mesh_tensorflow.transformer.transformer_layers.SelfAttention"
_OURS = "synthesizer_mtf.SyntheticAttention"
# The parameters of T5's self-attention that ours has, too.
_SAME = ("num_heads", "key_value_size", "dropout_rate", "relative_attention_type",
         "relative_attention_num_buckets")
_CLASSES = {"R": "RandomLogits", "Fix": "FixedRandomLogits", "T": "ToeplitzLogits",
            "FR": "FactorizedRandomLogits", "D": "DenseLogits",
            "FD": "FactorizedDenseLogits"}


def scopes() -> list[str]:
  """gin's scopes of the stacks of the model that gin describes."""
  kind = gin_files.bound("utils.run.model_type", "bitransformer")
  return ["encoder", "decoder"] if kind == "bitransformer" else [""]


def take_the_place_of_stock() -> None:
  """Binds V, with the parameters of T5's `SelfAttention`, where gin names no attention.

  V computes the same, from the same variables under another name.
  """
  chosen = stack.bound()
  missing = [scope for scope in scopes() if gin_files.nearest(scope, chosen)[1] is None]
  if not missing:
    return
  with gin.unlock_config():
    for (scope, selector), values in list(gin_internals.bindings().items()):
      if selector == _STOCK:
        for name in _SAME:
          if name in values:
            gin.bind_parameter(gin_files.parameter(scope, _OURS, name), values[name])
    for scope in missing:
      gin.bind_parameter(gin_files.parameter(scope, stack.SELECTOR, "attention"), "V")


def choose(entries: Mapping[str, Sequence[Any]], lengths: Mapping[str, int],
           mixed: bool = False) -> None:
  """Binds the attention of each block.

  Args:
    entries: for each scope of a stack, such as "encoder", a notation for each block;
      or what gin had there, for a block that stays.
    lengths: for each scope, the longest sequence, for tables of positions that gin
      gives no length.
    mixed: whether the mixtures have a weight for each head, which does not change.

  Raises:
    ValueError: gin gives a table a length that is too short.
  """
  with gin.unlock_config():
    for scope, blocks in entries.items():
      gin.bind_parameter(gin_files.parameter(scope, stack.SELECTOR, "attention"),
                         list(blocks))
      for cls in dict.fromkeys(_tables(blocks)):
        _lengthen(scope, cls, lengths[scope])
    if "" not in entries and set(scopes()) <= set(entries):
      # No stack uses the binding of all stacks.
      gin_internals.bindings().get(("", stack.SELECTOR), {}).pop("attention", None)
    if mixed:
      for name, value in {"weights": "per_head", "final_weights": None,
                          "annealing_steps": None}.items():
        gin.bind_parameter(f"synthesizer_mtf.Mixture.{name}", value)


def _tables(blocks: Iterable[Any]) -> Iterable[str]:
  for block in blocks:
    for part in block.split("+") if isinstance(block, str) else ():
      if part in _CLASSES:
        yield _CLASSES[part]


def _lengthen(scope, cls, length):
  """Binds `max_length` to the longest sequence, unless gin has a length."""
  with gin.config_scope(scope or None):
    bound = gin.get_bindings(f"synthesizer_mtf.{cls}")
  if bound.get("tile_length"):
    return
  given = bound.get("max_length")
  if given is None:
    gin.bind_parameter(
        gin_files.parameter(scope, f"synthesizer_mtf.{cls}", "max_length"), length)
  elif given < length:
    raise checks.Error(
        f"`{cls}.max_length` is {given} but the task's sequences have {length} tokens; "
        f"raise it with --gin_param=\"{cls}.max_length = {length}\", or shorten "
        "`utils.run.sequence_length`.")
