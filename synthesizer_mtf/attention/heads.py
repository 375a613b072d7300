"""The heads of an attention layer, with parameters from T5's macros."""

from typing import Any

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import kinds
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


class Heads:
  """The heads of a layer: what a call sees with them, and the dropout of their values.

  Attributes: `num_heads`, `key_value_size` (d_kv) and `dropout_rate`.
  """

  def __init__(self, layer: str, num_heads: int | None,
               key_value_size: int | None, dropout_rate: float | None):
    """Replaces None by the macros `num_heads`, `d_kv` and `dropout_rate`.

    Without the last macro the rate is 0. `layer` is the layer's name in gin, for
    messages.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    self._layer = layer
    self.num_heads = self._whole("num_heads", num_heads, "num_heads")
    self.key_value_size = self._whole("key_value_size", key_value_size, "d_kv")
    self.dropout_rate = or_macro(dropout_rate, "dropout_rate") or 0.0
    checks.require(
        checks.is_rate(self.dropout_rate), f"{layer}.dropout_rate", self.dropout_rate,
        f"be {checks.RATE}", "change it, or the macro `dropout_rate`")

  def _whole(self, name, value, macro):
    """The parameter or the macro, a positive integer."""
    name, value = f"{self._layer}.{name}", or_macro(value, macro)
    checks.check_whole(name, value, remedy=(
        f"change `{name}`, or the macro `{macro}` of T5's model files, which is its "
        "default"))
    return value

  def inputs(self, context: transformer.Context, x: mtf.Tensor,
             **kwargs: Any) -> AttentionInputs:
    """Checks the layout, and makes the inputs of a call as `for_call` does."""
    self.check_layout(context.model)
    return kinds.for_call(
        context, x, self.num_heads, self.key_value_size, **kwargs)

  def check_layout(self, model: transformer.Unitransformer) -> None:
    """Raises a ValueError if the layout splits heads into unequal parts."""
    splits.check_division(
        f"{self._layer}.num_heads", mtf.Dimension("heads", self.num_heads),
        model.layout, model.mesh_shape)

  def dropout(self, values: mtf.Tensor, inputs: AttentionInputs) -> mtf.Tensor:
    """Applies T5's attention dropout to the values: one mask for all queries."""
    return mtf.dropout(values, inputs.context.train, rate=self.dropout_rate,
                       noise_shape=values.shape - inputs.d_kv)


def or_macro(value: Any, macro: str) -> Any:
  """`value`; if it is None, the value of a gin macro such as T5's `d_kv`, or None."""
  if value is not None:
    return value
  try:
    return gin.get_configurable(f"{macro}/gin.macro")()
  except TypeError:  # The macro is not defined.
    return None

