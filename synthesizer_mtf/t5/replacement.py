"""Which layers of a stack the chosen attention replaces, and with which arguments.

Mesh TensorFlow's classes of attention to the encoder are subclasses of its
self-attention, so a layer of its base class may be either. Therefore only classes that
are known one by one are replaced. All others stay, such as a subclass of a user's own,
and the log names them.
"""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
import itertools
from typing import Any

from absl import logging
from mesh_tensorflow.transformer import evolved_transformer
from mesh_tensorflow.transformer import fixup_layers
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf import checks
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import layer as attention
from synthesizer_mtf.attention import notation

# All self-attention of Mesh TensorFlow, one class for one class.
SELF_ATTENTION = frozenset([
    transformer_layers.SelfAttention,
    transformer_layers.ExpertsSelfAttention,
    transformer_layers.Synthesizer,
    transformer_layers.LocalSelfAttention,
    transformer_layers.TalkingHeadsSelfAttention,
    transformer_layers.GeneralBilinearSelfAttention,
    transformer_layers.BranchedSelfAttention,
    fixup_layers.SelfAttentionFixup,
])
# All its attention to the encoder, which stays as it is.
CROSS_ATTENTION = (
    transformer_layers.EncDecAttention,
    transformer_layers.TransparentEncDecAttention,
    transformer_layers.ExpertsEncDecAttention,
    transformer_layers.TalkingHeadsEncDecAttention,
    transformer_layers.GeneralBilinearEncDecAttention,
    transformer_layers.BranchedEncDecAttention,
    fixup_layers.EncDecAttentionFixup,
)
# Its layers that call self-attention of their own, beside other layers.
COMPOSITE = (transformer_layers.ParallelLayer,
             evolved_transformer.DecoderAttentionLayer)

# Options of SelfAttention that change what it computes, and that our attention does not
# have, with the values that leave them out.
_OPTIONS = {
    "num_memory_heads": (0, None), "shared_kv": (False,), "attention_kwargs": ({},),
    "attention_func": (None,), "z_loss_coeff": (None,),
    "hyperprompt_length_encoder": (None,), "hyperprompt_length_decoder": (None,),
}
# The sizes of SelfAttention, and the macros that our attention takes them from.
_MACROS = {"num_heads": "num_heads", "key_value_size": "d_kv",
           "dropout_rate": "dropout_rate"}


def is_self_attention(layer: transformer.TransformerLayer) -> bool:
  """Whether a layer is exactly one of Mesh TensorFlow's self-attention layers."""
  return type(layer) in SELF_ATTENTION


def unknown(layers: Iterable[transformer.TransformerLayer]) -> list[str]:
  """The names of classes that may attend to themselves, but are not known exactly.

  Args:
    layers: the layers of a stack, before any is replaced.
  """
  classes = dict.fromkeys(
      type(layer) for layer in layers if not is_self_attention(layer) and (
          isinstance(layer, COMPOSITE) or
          isinstance(layer, transformer_layers.SelfAttention) and
          not isinstance(layer, CROSS_ATTENTION)))
  return [f"{cls.__module__}.{cls.__qualname__}" for cls in classes]


def arguments(layers: Sequence[transformer.TransformerLayer],
              block: Iterable[Any] | None) -> list[dict[str, Any]]:
  """The arguments of each layer, as `make_layer_stack.layers` gives them.

  Args:
    layers: the layers of a stack, before any is replaced.
    block: what `make_layer_stack` makes the layers of each block from; each entry is
      a class, or a list or tuple of one, a name and a dict of arguments.

  Raises:
    ValueError: the layers are not a multiple of such blocks, so that the arguments
      of a layer are unknown.
  """
  given = [dict(next((part for part in reversed(entry) if isinstance(part, dict)), {}))
           if isinstance(entry, (list, tuple)) else {} for entry in block or ()]
  if not any(given):
    return [{}] * len(layers)
  if len(layers) % len(given):
    raise checks.Error(
        f"`make_layer_stack.layers` has {len(given)} entries, of which some have "
        f"arguments, but the stack has {len(layers)} layers; give "
        "`synthesizer_stack` the entries of one block, as `block`.")
  return given * (len(layers) // len(given))


def make(choice: Any, old: transformer.TransformerLayer, given: dict[str, Any],
         scope: str) -> transformer.TransformerLayer:
  """Makes the layer that replaces another one.

  Args:
    choice: a notation, or a layer class.
    given: the arguments that `make_layer_stack.layers` gives to `old`.
    scope: gin's scope.

  Raises:
    ValueError: the choice is not an attention, or cannot have these arguments.
  """
  try:
    if not callable(choice):
      return notation.attention_layer(choice, **given)
    layer = choice(**given)
  except (TypeError, ValueError) as error:
    if not given:
      raise
    name = "/".join(filter(None, [scope, "make_layer_stack.layers"]))
    why = str(error).partition("\n")[0].removesuffix(".")
    raise checks.Error(
        f"`{name}` gives {given!r} to {type(old).__name__}, and so to the attention "
        f"that takes its place: {why}; change the arguments there.") from error
  if not isinstance(layer, transformer.TransformerLayer):
    raise checks.Error(
        f"`synthesizer_stack.attention` is {choice!r}, which is not an "
        "attention layer; name a notation such as \"R+V\", or a layer such as "
        "@SyntheticAttention.")
  return layer


def log(name: str, layers: Iterable[transformer.TransformerLayer],
        replaced: Iterable[tuple[transformer.TransformerLayer, Any,
                                 transformer.TransformerLayer]]) -> None:
  """Logs what stays in a stack, and what was replaced that is not T5's plain attention.

  Args:
    name: the gin name of the choice.
    replaced: tuples of a layer, the choice for it, and the layer that replaces it.
  """
  for cls in unknown(layers):
    logging.warning(
        "`%s` leaves %s as it is: only Mesh TensorFlow's own self-attention is "
        "replaced; name SelfAttention in its place to replace it.", name, cls)
  for line in dict.fromkeys(itertools.chain.from_iterable(
      _lost(old, new) for old, _, new in replaced)):
    logging.warning("`%s`: %s", name, line)
  lines = collections.Counter(
      f"{_shown(choice, new)} takes the place of {type(old).__name__}"
      for old, choice, new in replaced
      if type(old) is not transformer_layers.SelfAttention)
  for line, count in lines.items():
    logging.info("`%s`: %s in %d layers.", name, line, count)


def _lost(old, new):
  """Sentences about what gin gives T5's attention, but not the one in its place."""
  if type(old) is not transformer_layers.SelfAttention or type(new) is type(old):
    return
  place = f"{type(new).__name__}, which takes its place,"
  for option, without in _OPTIONS.items():
    value = getattr(old, option)
    if value not in without:
      yield f"`SelfAttention.{option}` is {value!r}, which {place} does not have."
  for size, macro in _MACROS.items():
    theirs, ours = (getattr(owner, size, None)
                    for owner in (old, getattr(new, "heads", None)))
    if theirs != ours and ours is not None and (
        ours == (heads.or_macro(None, macro) or 0)):
      yield (f"`SelfAttention.{size}` is {theirs!r}, but {place} has {ours!r}, from "
             f"the macro `{macro}`; bind `{type(new).__name__}.{size}` as well.")


def _shown(choice, layer):
  """E.g. "R, with 24 heads of 64,"; layers of others have sizes of their own."""
  shown = choice if isinstance(choice, str) else type(layer).__name__
  if type(layer) is not attention.SyntheticAttention:
    return shown
  heads = layer.heads
  return f"{shown}, with {heads.num_heads} heads of {heads.key_value_size},"
