"""T5's feed-forward layer, trained fast.

It has the variables, the function and the dropout of stock `DenseReluDense`. In
training, relu and dropout are one operation, which saves mixed precision some casts. In
float32 a step takes as long as with the stock layer.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow import layers
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.attention.functions import dense
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import mixed_precision
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
      x: <float>[batch, length, d_model]; `length` is absent in incremental mode.

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
    h = _dropped_relu(h, keep_mask)
    return layers.dense(
        h, d_model, [d_ff], context.model.ensemble_dims, use_bias=False, name="wo",
        variable_dtype=context.variable_dtype)


def _dropped_relu(x, keep_mask):
  """max(x, 0) where `keep_mask` is 1, and 0 elsewhere, with one pass over the gradient.

  The result is positive exactly where the gradient passes. So the gradient of both
  operations is relu's gradient at the result, and reads neither of the inputs again.

  Args:
    x: <float>
    keep_mask: <float>, 0 or 1, with some of the dimensions of x in the same order; None
      to keep all.

  Returns:
    a tensor with the shape and dtype of x.
  """
  dims = x.shape.dims
  optional = [] if keep_mask is None else [keep_mask]
  missing = [i for i, d in enumerate(dims) for t in optional if d not in t.shape.dims]

  def compute(x, keep_mask=None):  # The shape of x.
    for axis in missing:
      keep_mask = tf.expand_dims(keep_mask, axis)
    if not mixed_precision.is_marked():
      return tf.nn.relu(x) if keep_mask is None else tf.nn.relu(x) * keep_mask
    # In bfloat16 TensorFlow computes relu's gradient in half the time of relu.
    kept = x if keep_mask is None else mixed_precision.multiply(x, keep_mask)
    return tf.raw_ops.ReluGrad(gradients=kept, features=x)

  return mtf.slicewise(compute, [x, *optional], splittable_dims=dims,
                       grad_function=dense.relu_gradient, name="dropped_relu")
