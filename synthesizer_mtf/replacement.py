"""Which layers of a stack the chosen attention replaces, and what is lost with them.

Mesh TensorFlow's classes of attention to the encoder are subclasses of its
self-attention, so the base class does not tell which of both a layer is. Therefore only
classes that are known one by one are replaced. All others stay, such as a subclass of a
user's own, and the log names them.
"""

import collections
from collections.abc import Iterable
from typing import Any

from absl import logging
from mesh_tensorflow.transformer import evolved_transformer
from mesh_tensorflow.transformer import fixup_layers
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.layers import attention

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


def log(name: str, layers: Iterable[transformer.TransformerLayer],
        replaced: Iterable[tuple[transformer.TransformerLayer, Any,
                                 transformer.TransformerLayer]]) -> None:
  """Logs what stays in a stack, and what was replaced that is not T5's plain attention.

  Args:
    name: the gin name of the choice.
    layers: the layers of the stack, before any is replaced.
    replaced: tuples of a layer, the choice for it, and the layer that replaces it.
  """
  for cls in unknown(layers):
    logging.warning(
        "`%s` leaves %s as it is: only Mesh TensorFlow's own self-attention is "
        "replaced; name SelfAttention in its place to replace it.", name, cls)
  lines = collections.Counter(
      f"{_shown(choice, new)} takes the place of {type(old).__name__}"
      for old, choice, new in replaced
      if type(old) is not transformer_layers.SelfAttention)
  for line, count in lines.items():
    logging.info("`%s`: %s in %d layers.", name, line, count)


def _shown(choice, layer):
  """E.g. "R, with 24 heads of 64,"; layers of others have sizes of their own."""
  shown = choice if isinstance(choice, str) else type(layer).__name__
  if type(layer) is not attention.SyntheticAttention:
    return shown
  sizes = layer.sizes
  return f"{shown}, with {sizes.num_heads} heads of {sizes.key_value_size},"
