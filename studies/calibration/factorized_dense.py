"""FD by alternating least squares, from the layer's input to V's logits.

FD's column is a product of two predictions, A[j // b] B[j mod b], for which there is no
least squares in one step. With one of WA and WB fixed there is: so each takes a pass
over the data in turn. B begins as 1 for each token, so A begins as the best prediction
of the logits' means over blocks of b columns. The logits, and W1, are those of D.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from studies.calibration import dense
from studies.calibration import graphs
from synthesizer_mtf import checks
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import targets
import tensorflow.compat.v1 as tf

NAMES = ("FD",)

_ROUNDS = 3  # How often WA and WB are solved for; each is a pass over the data.
_RIDGE = 1e-4  # Of the mean square of a direction.


def half(hidden: tf.Tensor, logits: tf.Tensor, count: tf.Tensor, known: tf.Tensor,
         sizes: tuple[int, int], axis: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """The sums of the least squares for one of WA and WB.

  Args:
    hidden: <float32>[batch, length, heads, d_kv]
    logits: <float32>[batch, heads, length, positions], 0 for keys that are not seen.
    count: <float32>[batch, length], the number of keys that a query sees.
    known: <float32>[batch, heads, length, n], the other operand; n is b if axis is 0.
    sizes: (a, b)
    axis: 0 for WA, 1 for WB.

  Returns:
    <float32>[heads, n, d_kv, d_kv], <float32>[heads, n, d_kv] and <float32>[heads]:
    the sums of weighted h h^T, of h times the logits, and of the squared logits.
  """
  columns = sizes[0] * sizes[1]
  logits = logits[..., :columns]
  rest = columns - logits.shape.as_list()[-1]
  shape = [*logits.shape.as_list()[:3], *sizes]
  table = tf.reshape(tf.pad(logits, [(0, 0)] * 3 + [(0, rest)]), shape)
  seen = tf.reshape(tf.cast(tf.range(columns) < tf.cast(count, tf.int32)[..., None],
                            tf.float32), [shape[0], shape[2], *sizes])
  equations = ("bipq,bhiq->bhip", "bhipq,bhiq->bhip") if axis == 0 else (
      "bipq,bhip->bhiq", "bhipq,bhip->bhiq")
  weight = tf.einsum(equations[0], seen, known ** 2)
  product = tf.einsum(equations[1], table, known)
  each = hidden[:, :, :, None] * tf.transpose(weight, [0, 2, 1, 3])[..., None]
  return (tf.einsum("bihnk,bihl->hnkl", each, hidden),
          tf.einsum("bihk,bhin->hnk", hidden, product),
          tf.reduce_sum(logits ** 2, [0, 2, 3]))


def solve(squares: np.ndarray, products: np.ndarray) -> np.ndarray:
  """WA or WB: <float64>[heads, d_kv, n], from the sums of `half`."""
  hidden = squares.shape[-1]
  mean = np.trace(squares, axis1=2, axis2=3).mean() / hidden
  normal = squares + _RIDGE * max(mean, 1e-12) * np.eye(hidden)
  return np.linalg.solve(normal, products[..., None])[..., 0].transpose(0, 2, 1)


class _Layer:
  """The tensors of one layer: of `dense.Layer`, and both halves."""

  def __init__(self, base, shapes):
    self.base = base
    self.operands, self.halves = [], []
    sizes = shapes["WA"][-1], shapes["WB"][-1]
    self.one = tf.placeholder(tf.float32, [])  # Added to B.
    for name, added in (("WA", 0.), ("WB", self.one)):
      weights = tf.placeholder(tf.float32, shapes[name])
      self.operands.append((weights, added + tf.einsum(
          "bihk,hkn->bhin", base.hidden, weights)))
    for axis in (0, 1):
      self.halves.append(half(base.hidden, base.logits, base.count,
                              self.operands[1 - axis][1], sizes, axis))


def fit(graph: graphs.Graph, batches: Callable[[], Iterable[reading.Batch]],
        shapes: Mapping[str, Mapping[str, Sequence[int]]],
        found: Mapping[str, means.Means], biases: Mapping[str, np.ndarray],
        ) -> dict[str, targets.Replacement]:
  """Makes the variables of FD; the arguments and the result are as in `dense.fit`."""
  if not shapes:
    return {}
  for name, inside in shapes.items():
    columns = inside["WA"][-1] * inside["WB"][-1]
    if columns < len(found[name].pairs):
      raise checks.Error(
          f"FD's columns are {columns} and repeat (`tile_length`), but the task's "
          f"sequences have {len(found[name].pairs)} tokens; leave `tile_length` out.")
  layers = graph.define(lambda attention: {
      name: _Layer(dense.Layer(attention[name], biases.get(name),
                               graph.layers[name].heads, inside["WA"][1]), inside)
      for name, inside in shapes.items()})
  inputs = dense.find_inputs(
      graph, batches, {name: each.base for name, each in layers.items()}, found)
  weights = {name: [np.zeros(inside["WA"]), np.zeros(inside["WB"])]
             for name, inside in shapes.items()}
  share = {}
  for step in range(2 * _ROUNDS):
    axis = step % 2
    values = {}
    for name, each in layers.items():
      values[each.base.weights] = inputs[name]
      values[each.one] = np.array(step == 0, np.float32)
      values.update(zip((place for place, _ in each.operands), weights[name]))
    sums = dense.add(graph, batches(), {
        name: each.halves[axis] for name, each in layers.items()}, values)
    for name, (squares, products, variance) in sums.items():
      new = solve(squares, products)
      weights[name][axis] = new
      # At the least squares, what is explained is the product with the logits.
      share[name] = (new.transpose(0, 2, 1) * products).sum((1, 2)) / np.maximum(
          variance, 1e-300)
  return {name: targets.Replacement(
      {"W1": inputs[name], "WA": weights[name][0], "WB": weights[name][1]}, None,
      [dense.explained("FD", share[name])]) for name in shapes}
