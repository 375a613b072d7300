"""T5's feed-forward layer, trained fast.

It has the variables, the function and the dropout of stock `DenseReluDense`. In
training, relu and dropout are one operation (see `dropped_relu.py`).
"""

import mesh_tensorflow as mtf
from mesh_tensorflow import layers
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import dropped_relu
import tensorflow.compat.v1 as tf

_CALL = transformer_layers.DenseReluDense.call


def for_layer(layer: transformer.TransformerLayer) -> transformer.TransformerLayer:
  """The layer itself, or a fast one that replaces it.

  Returns:
    a `DenseReluDense` of this module for a stock one with relu and without biases;
    `layer` for all others, such as T5 1.1's gated layers, or if dropout drops all.
  """
  known = type(layer) is transformer_layers.DenseReluDense and (
      transformer_layers.DenseReluDense.call is _CALL)
  if not known or layer.activation != "relu" or layer.use_bias or (
      layer.dropout_rate >= 1):
    return layer
  # A call of the constructor would read gin again, and in another scope.
  fast = DenseReluDense.__new__(DenseReluDense)
  fast.__dict__.update(vars(layer))
  return fast


class DenseReluDense(transformer_layers.DenseReluDense):
  """Two dense layers with relu and dropout between them (T5); `for_layer` makes it.

  The scope of the variables is the name of the class, so this class has the name of the
  stock class.
  """

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer; on TPUs, and outside of training, calls the stock layer.

    Args:
      context: a `transformer.Context`.
      x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
      losses: ignored.

    Returns:
      a tensor with the shape and dtype of x.
    """
    if not context.train or splits.is_compiled(context.mesh):
      return super().call(context, x, losses)
    d_model = x.shape.dims[-1]
    d_ff = mtf.Dimension("d_ff", self.hidden_size)
    keep = 1.0 - self.dropout_rate
    kernel = layers.get_dense_kernel_weights(
        x, [d_ff], [d_model], context.model.ensemble_dims, None, "wi",
        context.variable_dtype)
    # Scales the kernel instead of the larger result: relu(c x) is c relu(x).
    h = layers.dense(x, d_ff, [d_model], use_bias=False, name="wi",
                     kernel_weights=kernel if keep == 1 else kernel * (1 / keep))
    keep_mask = None
    if keep < 1:
      with tf.variable_scope(None, "dropout"):  # Stock's name, for the same seed.
        keep_mask = mtf.cast(mtf.less(mtf.random_uniform(
            x.mesh, h.shape - context.length_dim, dtype=tf.float32), keep), h.dtype)
    h = dropped_relu.dropped_relu(h, keep_mask)
    return layers.dense(
        h, d_model, [d_ff], context.model.ensemble_dims, use_bias=False, name="wo",
        variable_dtype=context.variable_dtype)
