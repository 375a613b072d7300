"""Which of T5's cross-attentions this package computes: stock ones, exactly."""

from mesh_tensorflow import layers
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.attention.others.cross_attention import EncDecAttention

# Options of stock attention that change its variables or its function, with the values
# that this module supports.
_KNOWN_OPTIONS = {
    "num_memory_heads": (0, None), "shared_kv": (False,), "combine_dims": (True,),
    "keep_query_heads_dims": (False, None), "z_loss_coeff": (None,),
    "fold_scaling_into_initializer": (True,), "attention_kwargs": ({},),
}
# If it is another one, somebody has replaced the method.
_CALL = transformer_layers.EncDecAttention.call


def for_layer(layer: transformer.TransformerLayer) -> transformer.TransformerLayer:
  """The layer itself, or a fast one that replaces it.

  Returns:
    an `EncDecAttention` of this package for a stock one with supported options;
    `layer` for all others.
  """
  if not _is_stock(layer) or not is_plain(layer) or layer.num_heads == 1 or (
      layers.unit_scaling_convention()):
    return layer
  fast = EncDecAttention(layer)
  fast.set_name(layer.name)
  return fast


def _is_stock(layer):
  stock = transformer_layers.EncDecAttention
  return type(layer) is stock and stock.call is _CALL and "call" not in vars(layer)


def is_plain(layer: transformer_layers.SelfAttention) -> bool:
  """Whether stock attention has no option that changes variables or function."""
  return all(getattr(layer, name) in values
             for name, values in _KNOWN_OPTIONS.items())
