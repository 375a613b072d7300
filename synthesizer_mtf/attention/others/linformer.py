"""Linformer: attention to a fixed number of projections of all positions."""

import copy

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import tables


@gin.configurable(module="synthesizer_mtf")
class Linformer(transformer.TransformerLayer):
  """softmax(Q (E K)^T) F V with E, F: length -> k (arXiv:2006.04768).

  Each query attends to k mixtures of all positions, so the layer cannot mask later
  tokens. It is for encoders only, as the Synthesizer paper says (section 4.2). The
  layer sets padding to zero before mixing, and refuses packed rows.

  Variables: `q`, `k`, `v`, `o` as T5 stores them; `E` and `F`
  [heads, memory_length, rank], without `heads` if shared between heads, and
  without `F` if shared between keys and values.
  """

  # Sums over all positions: twice as many entries would give twice as much.
  variables = {name: base.Axes(positions=(-2,), linear=False) for name in ("E", "F")}

  def __init__(self, num_heads: int | None = None, key_value_size: int | None = None,
               dropout_rate: float | None = None, max_length: int = 512,
               rank: int = 32, share_heads: bool = False,
               share_kv: bool = False, share_layers: bool = False):
    """Declares the parameters.

    Args:
      num_heads, key_value_size, dropout_rate: as in `SyntheticAttention`.
      max_length: the longest sequence, in tokens.
      rank: the number of projections, k; 32 in the Synthesizer paper's Table 7.
      share_heads: one projection for all heads of a layer.
      share_kv: one projection for keys and values. Together with share_heads, it
        is the "key-value sharing" of the Linformer paper (section 4).
      share_layers: one projection for all layers, heads, keys and values of a
        stack. It is stored with the first layer.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    self.heads = heads.Heads(
        "Linformer", num_heads, key_value_size, dropout_rate)
    for name, value in (("max_length", max_length), ("rank", rank)):
      checks.check_whole(f"Linformer.{name}", value)
    for name, value in (("share_heads", share_heads), ("share_kv", share_kv),
                        ("share_layers", share_layers)):
      checks.check_boolean(f"Linformer.{name}", value)
    self.max_length = max_length
    self.rank = mtf.Dimension("memory_length", rank)
    self.share_heads = share_heads or share_layers
    self.share_kv = share_kv or share_layers
    self.share_layers = share_layers

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer; the arguments and the result are as in `SyntheticAttention`.

    Raises:
      ValueError: the stack is a decoder, rows are packed, or sequences are too long.
    """
    del losses
    self._check(context)
    inputs = self.heads.inputs(context, x)
    seen = inputs.mask().keys
    query = inputs.project_query()
    key = self._mix("E", inputs.project_memory("k"), seen, inputs)
    values = self._mix("E" if self.share_kv else "F",
                       inputs.project_memory("v"), seen, inputs)
    values = self.heads.dropout(values, inputs)
    mixed = copy.copy(inputs)
    mixed.memory_length = self.rank  # The mixtures are the keys.
    return inputs.project_back(attend.attend(
        mixed, [logit_forms.InnerProduct(query, key)], values,
        masks.AttentionMask()))

  def _check(self, context):
    if context.model.autoregressive:
      raise checks.Error(
          "`synthesizer_stack.attention` is Linformer in a decoder, but it mixes "
          "all positions before it attends, so that later tokens would be seen; "
          "choose another attention for `decoder/synthesizer_stack.attention`.")
    if segments.is_packed(context):
      raise checks.Error(
          "`mesh_train_dataset_fn.pack` is True, but Linformer would mix the "
          "examples of a packed row; bind `mesh_train_dataset_fn.pack = False`.")
    checks.check_length(
        "Linformer.max_length", self.max_length, context.length_dim.size)

  def _mix(self, name, tensor, seen, inputs):
    """Projects [batch, heads, memory_length, d_kv] to [batch, heads, rank, d_kv]."""
    if seen is not None:
      tensor *= mtf.cast(seen, tensor.dtype)
    cache = inputs.context.cache if self.share_layers else {}
    if ("linformer", name) not in cache:
      cache["linformer", name] = inputs.variable(
          name, ([] if self.share_heads else [inputs.heads]) + [
              mtf.Dimension("table_length", self.max_length),
              mtf.Dimension("rank", self.rank.size)],
          self.max_length ** -0.5)
    table = tables.cut(
        cache["linformer", name], "table_length", inputs.memory_length.size)
    table = mtf.rename_dimension(table, "table_length", "memory_length")
    mixed = mtf.einsum([tensor, table], output_shape=inputs.batch_dims + [
        inputs.heads, mtf.Dimension("rank", self.rank.size), inputs.d_kv])
    return mtf.rename_dimension(mixed, "rank", "memory_length")
