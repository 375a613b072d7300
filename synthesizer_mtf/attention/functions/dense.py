"""D and FD: each token predicts its logits from itself alone."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf


def hidden_layer(inputs: AttentionInputs,
                 share_query: bool = False, use_bias: bool = False) -> mtf.Tensor:
  """relu(X W1 + b1), the first layer of both dense functions.

  Args:
    inputs: the inputs of the call.
    share_query: use V's projection `q` instead of `W1`.
    use_bias: add `b1` [heads, d_kv].

  Returns:
    <float>[batch, heads, length, d_kv]
  """
  if share_query:
    hidden = inputs.project_query()
  else:
    hidden = inputs.project("W1")
  if use_bias:
    hidden += inputs.variable("b1", [inputs.heads, inputs.d_kv], 0.0)
  # The gradient of `mtf.relu` would keep more tensors.
  return mtf.cwise(tf.nn.relu, [hidden], grad_function=relu_gradient)


def relu_gradient(operation: mtf.Operation,
                  grad: mtf.Tensor) -> list[mtf.Tensor | None]:
  """The gradient of relu, from its result; other inputs of `operation` get none."""
  grad_x = mtf.cwise(
      lambda grad, result: tf.raw_ops.ReluGrad(gradients=grad, features=result),
      [grad, operation.outputs[0]], grad_function=0)
  return [grad_x] + [None] * (len(operation.inputs) - 1)


@gin.configurable(module="synthesizer_mtf")
class DenseLogits(base.LengthTables):
  """S(X) = relu(X W1) W2 (arXiv:2005.00743, Dense Synthesizer, eq. 2).

  Each head has its own hidden layer of size d_kv. So all heads together have the
  paper's d^2 + d N parameters.

  Variables: `W1` [d_model, heads * d_kv]; `W2` [heads, d_kv, memory_length], or
  [d_kv, memory_length] if shared; optionally `b1` [heads, d_kv] and `b2`
  [heads, memory_length].
  """

  variables = {
      "W1": base.Axes(), "W2": base.Axes(positions=(-1,)),
      "b1": base.Axes(), "b2": base.Axes(positions=(-1,))}

  def __init__(self, max_length: int = 512, tile_length: int | None = None,
               share_heads: bool = False, share_query: bool = False,
               use_bias: bool = False):
    """Declares the parameters.

    Args:
      max_length: the longest sequence, in tokens.
      tile_length: predict this many columns and repeat them to any length;
        `max_length` is then ignored.
      share_heads: all heads share one `W2`, as the sizes in the paper's Table 4
        imply.
      share_query: the hidden layer is relu(X q) with V's projection `q`, as in
        the authors' code and as Table 4's D+V implies.
      use_bias: the biases b1 and b2 of the paper's first version. T5 has none.

    Raises:
      ValueError: a length is below 1, or an option is neither True nor False.
    """
    super().__init__(max_length, tile_length)
    self.check_boolean(share_heads=share_heads, share_query=share_query,
                       use_bias=use_bias)
    self.share_heads = share_heads
    self.share_query = share_query
    self.use_bias = use_bias

  @property
  def variable_names(self) -> tuple[str, ...]:
    biases = ("b1", "b2") if self.use_bias else ()
    return ("q" if self.share_query else "W1", "W2") + biases

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    hidden = hidden_layer(inputs, self.share_query, self.use_bias)
    columns = mtf.Dimension("memory_length", self.table_length)
    per_head = [] if self.share_heads else [inputs.heads]
    table = inputs.variable("W2", per_head + [inputs.d_kv, columns],
                            inputs.d_kv.size ** -0.5)
    key = inputs.memory_columns(self.fit(table, inputs, "memory_length"))
    terms: list[logit_forms.Logits] = [
        logit_forms.InnerProduct(
            hidden, inputs.once(lambda: _channels_last(key, inputs.d_kv)))]
    if self.use_bias:
      terms.append(self._bias(inputs, columns))
    return terms

  def _bias(self, inputs, columns):
    table = inputs.variable("b2", [inputs.heads, columns], 0.0)
    key = inputs.memory_columns(self.fit(table, inputs, "memory_length"))
    one = mtf.Dimension("bias", 1)
    ones = mtf.ones(inputs.context.mesh,
                    [inputs.heads] + inputs.length_dims + [one], key.dtype)
    return logit_forms.InnerProduct(ones, mtf.reshape(key, key.shape + one))


@gin.configurable(module="synthesizer_mtf")
class FactorizedDenseLogits(base.LengthTables):
  """S(X) = H_A(F_A(X)) * H_B(F_B(X)) (arXiv:2005.00743, eqs. 5 and 6).

  Column j is A[j // b] * B[j mod b]. One operand repeats its entries and the other
  tiles them, so a row of a * b columns holds a * b distinct products. The paper calls
  both H_A and H_B tiling functions. But tiling both, or repeating both, would leave few
  distinct products, which the paper wants to avoid.

  Variables: `W1` [d_model, heads * d_kv], `WA` [heads, d_kv, a], `WB`
  [heads, d_kv, b].
  """

  variables = {
      "W1": base.Axes(), "WA": base.Axes(
          heads=-3, positions=(-1,), remedy="all sizes except a must be equal"),
      "WB": base.Axes(heads=-3, remedy=(
          "FD's products keep their columns only if b, the size of WB, is the same: "
          "bind `FactorizedDenseLogits.b = {size}`"))}

  def __init__(self, max_length: int = 512, a: int | None = None,
               b: int | None = None, tile_length: int | None = None):
    """Declares the parameters.

    Args:
      max_length: the longest sequence, in tokens.
      a: size of the operand that repeats; max_length / b if None.
      b: size of the operand that tiles; max_length / a if None. If both are None, a
        is the largest divisor of max_length that is at most its square root.
      tile_length: predict this many columns and repeat them to any length; it also
        replaces `max_length` for a and b.

    Raises:
      ValueError: a length, a or b is below 1, or a * b is not the length.
    """
    super().__init__(max_length, tile_length)
    for name, value in (("a", a), ("b", b)):
      if value is not None:
        self.check_at_least(1, **{name: value})
    self.a, self.b = self._factors(a, b)

  def _factors(self, a, b):
    length = self.table_length
    if a is None and b is None:
      a = max(n for n in range(1, int(length ** 0.5) + 1) if length % n == 0)
    a = a or length // b
    b = b or length // a
    if a * b != length:
      name = self.parameter("tile_length" if self.tile_length else "max_length")
      raise checks.Error(
          f"`{self.parameter('a')}` is {a} and `{self.parameter('b')}` is {b} "
          f"but their product must be `{name}`, which is {length}; change one "
          "of the three, or leave a and b out.")
    return a, b

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    hidden = hidden_layer(inputs)

    def operand(name, dim):
      weights = inputs.variable(name, [inputs.heads, inputs.d_kv, dim],
                                inputs.d_kv.size ** -0.5)
      return mtf.einsum([hidden, weights],
                        output_shape=inputs.query_dims + [dim])

    self.check_length(inputs)
    return [logit_forms.Products(operand("WA", mtf.Dimension("a", self.a)),
                                 operand("WB", mtf.Dimension("b", self.b)))]


def _channels_last(key, channels):
  return mtf.transpose(key, (key.shape - channels) + channels)
