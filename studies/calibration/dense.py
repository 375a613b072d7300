"""D by least squares from the layer's input to V's logits.

Softmax forgets a constant of each query, so D learns V's logits less their mean over
the keys that the query sees; T5's relative position bias is in neither. A column of D
is the position of a key, so D gets from V what a token tells of where it looks.

W1 comes from a first pass over the data, a linear regression of low rank: the d_kv / 2
directions of x that tell most about V's logits, and their negatives, so that relu
keeps both signs. W2 comes from a second pass, by least squares on relu(x W1), column
by column, each from the queries that see it. With `share_query`, W1 is V's q.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from studies.calibration import graphs
from synthesizer_mtf import checks
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import targets
import tensorflow.compat.v1 as tf

NAMES = ("D",)

# Columns of queries that see alike share their matrix of squares, so that memory does
# not grow with length * d_kv^2. Up to so many positions each has its own.
_GROUPS = 16
# The ridge is as much as this number of queries with features of mean size.
_RIDGE = 0.1
# Weights below it count as it, as float32 has no logs of 0.
_LEAST = 1e-37


def centered_logits(attention: moments.Attention, bias: np.ndarray | None,
                    ) -> tuple[tf.Tensor, tf.Tensor]:
  """V's logits without the bias, less their mean over the keys that a query sees.

  Args:
    attention: the layer's.
    bias: <float32>[heads, length, memory_length], T5's relative position bias; or None.

  Returns:
    <float32>[batch, heads, length, positions], by the position of the key in its
    segment, and 0 for keys that the query does not see; and <float32>[batch, length],
    the number of keys that it sees.
  """
  logits = tf.math.log(tf.maximum(attention.weights, _LEAST))
  if bias is not None:
    logits -= bias
  seen = attention.seen[:, None]
  count = tf.reduce_sum(seen, -1, keepdims=True)
  mean = tf.reduce_sum(logits * seen, -1, keepdims=True) / tf.maximum(count, 1)
  logits = (logits - mean) * seen
  if attention.is_packed:
    columns = tf.one_hot(attention.positions, attention.positions.shape.as_list()[-1])
    logits = tf.einsum("bhij,bjp->bhip", logits, columns)
  return logits, count[:, 0, :, 0]


class Layer:
  """What a pass over the data adds up for one layer, as tensors.

  Attributes:
    logits: <float32>[batch, heads, length, positions], of `centered_logits`.
    count: <float32>[batch, length], the number of keys that a query sees.
    first: the sums of x x^T [d_model, d_model] and of x y^T [heads, d_model,
      positions], for `directions`.
    weights: <float32>[d_model, heads * d_kv], the placeholder of W1.
    hidden: <float32>[batch, length, heads, d_kv], relu(x W1).
  """

  def __init__(self, attention: moments.Attention, bias: np.ndarray | None,
               heads: int, hidden: int) -> None:
    self.logits, self.count = centered_logits(attention, bias)
    x = attention.x * tf.cast(self.count > 0, tf.float32)[..., None]
    self.first = (tf.einsum("bid,bie->de", x, x),
                  tf.einsum("bid,bhip->hdp", x, self.logits))
    self.weights = tf.placeholder(tf.float32, [x.shape.as_list()[-1], heads * hidden])
    self.hidden = tf.reshape(tf.nn.relu(tf.einsum("bid,dk->bik", x, self.weights)),
                             [*x.shape.as_list()[:2], heads, hidden])

  def squares_and_products(self, size: int) -> tuple[tf.Tensor, ...]:
    """The sums of h h^T [groups, heads, d_kv, d_kv], by the group of `size` columns in
    which a query's last key is; of h y^T [heads, d_kv, positions]; and of y^2 [heads].
    """
    length = self.logits.shape.as_list()[-1]
    group = tf.one_hot((tf.cast(self.count, tf.int32) - 1) // size, -(-length // size))
    each = self.hidden[:, :, None] * group[..., None, None]
    return (tf.einsum("bichk,bihl->chkl", each, self.hidden),
            tf.einsum("bihk,bhip->hkp", self.hidden, self.logits),
            tf.reduce_sum(self.logits ** 2, [0, 2, 3]))


def fit(graph: graphs.Graph, batches: Callable[[], Iterable[reading.Batch]],
        shapes: Mapping[str, Mapping[str, Sequence[int]]],
        found: Mapping[str, means.Means], biases: Mapping[str, np.ndarray],
        ) -> dict[str, targets.Replacement]:
  """Makes the variables of D.

  Args:
    graph: the model with V.
    batches: a function that returns the batches to read, each time from the first.
    shapes: for each layer that becomes D, the shapes of its variables.
    found: the `Means` of the layers.
    biases: `reading.Graph.biases`.

  Returns:
    a dict from the names of the layers to `Found`.

  Raises:
    ValueError: D's columns repeat.
  """
  if not shapes:
    return {}
  layers = graph.define(lambda attention: {
      name: Layer(attention[name], biases.get(name), graph.layers[name].heads,
                  inside["W2"][-2]) for name, inside in shapes.items()})
  groups = {name: -(-len(found[name].pairs) // _GROUPS) for name in shapes}
  tensors = graph.define(lambda _: {
      name: each.squares_and_products(groups[name]) for name, each in layers.items()})
  inputs: dict[str, np.ndarray] = {}
  for name, inside in shapes.items():
    if inside["W2"][-1] < len(found[name].pairs):
      raise checks.Error(
          f"D's columns are {inside['W2'][-1]} and repeat (`tile_length`), but the "
          f"task's sequences have {len(found[name].pairs)} tokens; leave "
          "`tile_length` out.")
    if "W1" not in inside:
      inputs[name] = graph.variable(graph.layers[name].place + "q").astype(np.float32)
  inputs.update(find_inputs(graph, batches, {
      name: each for name, each in layers.items() if name not in inputs}, found))
  sums = add(graph, batches(), tensors,
             {layers[name].weights: value for name, value in inputs.items()})
  made = {}
  for name, inside in shapes.items():
    new = {variable: np.zeros(shape) for variable, shape in inside.items()
           if variable in ("W1", "W2", "b1", "b2")}
    if "W1" in new:
      new["W1"] = inputs[name]
    squares, products, variance = sums[name]
    table = columns(squares, products, found[name].queries.sum(0), groups[name],
                    shared=len(inside["W2"]) == 2)
    new["W2"][..., :table.shape[-1]] = table
    # At the least squares, what is explained is the product with the logits.
    share = (table * products).sum((-1, -2)) / np.maximum(variance, 1e-300)
    made[name] = targets.Replacement(new, None, [explained("D", share)])
  return made


def explained(name: str, share: np.ndarray) -> str:
  """A sentence about the share of the variance of V's logits, <float64>[heads]."""
  return (f"{name} explains {share.mean():.0%} of the variance of V's logits about "
          f"their mean for each query; in a head at least {share.min():.0%}")


def find_inputs(graph: graphs.Graph, batches: Callable[[], Iterable[reading.Batch]],
                layers: Mapping[str, Layer], found: Mapping[str, means.Means],
                ) -> dict[str, np.ndarray]:
  """W1 of each layer, from a pass over the data; see `directions`."""
  if not layers:
    return {}
  sums = add(graph, batches(), {name: each.first for name, each in layers.items()}, {})
  return {name: directions(squares, products, found[name].queries.sum(0),
                           layers[name].hidden.shape.as_list()[-1])
          for name, (squares, products) in sums.items()}


def add(graph: graphs.Graph, batches: Iterable[reading.Batch],
        tensors: Mapping[str, Sequence[tf.Tensor]],
        values: Mapping[tf.Tensor, np.ndarray]) -> dict[str, Any]:
  """Adds up the values of tensors over batches, in float64.

  Args:
    graph: where the tensors are.
    batches: the batches.
    tensors: a dict from names to tensors.
    values: those of the placeholders.
  """
  total: dict[str, list[np.ndarray]] = {}
  for batch in batches:
    for name, arrays in graph.run(tensors, batch, values).items():
      if name not in total:
        total[name] = [np.zeros(array.shape) for array in arrays]
      for old, new in zip(total[name], arrays):
        old += new
  return total


def directions(squares: np.ndarray, products: np.ndarray, seeing: np.ndarray,
               hidden: int) -> np.ndarray:
  """W1: the directions of x that tell most about the logits, and their negatives.

  They are those of the regression of the logits on x with the rank hidden / 2 that has
  the least squared error, if x does not depend on the keys that a query sees.

  Args:
    squares: <float64>[d_model, d_model], the sum of x x^T over queries.
    products: <float64>[heads, d_model, positions], of x times the logits.
    seeing: <float64>[positions], how many queries see n + 1 keys.
    hidden: d_kv.

  Returns:
    <float32>[d_model, heads * d_kv]; the mean square of each x W1 is 1.
  """
  heads, d_model, _ = products.shape
  queries = max(seeing.sum(), 1)
  count = np.maximum(seeing[::-1].cumsum()[::-1], 1)  # That see a position.
  mean = squares / queries
  mean += 1e-4 * np.trace(mean) / d_model * np.eye(d_model)
  root = np.linalg.cholesky(mean)
  generator = np.random.RandomState(0)
  found = np.zeros([d_model, heads, hidden])
  for head in range(heads):
    left, _, _ = np.linalg.svd(
        np.linalg.solve(root, products[head] / count ** 0.5), full_matrices=False)
    size = -(-hidden // 2)
    chosen = np.linalg.solve(root.T, left[:, :size])
    if chosen.shape[1] < size:  # There are more units than directions.
      chosen = np.concatenate([chosen, generator.randn(
          d_model, size - chosen.shape[1]) * (queries / np.trace(squares)) ** 0.5], 1)
    found[:, head] = np.concatenate([chosen, -chosen], 1)[:, :hidden]
  return found.reshape(d_model, heads * hidden).astype(np.float32)


def columns(squares: np.ndarray, products: np.ndarray, seeing: np.ndarray, size: int,
            shared: bool = False) -> np.ndarray:
  """W2: the least squares of each column, from the queries that see it.

  In a group of `size` columns, queries that see some of them count for each in the
  share of those that see it. The ridge is a tenth of a query of mean features.

  Args:
    squares: <float64>[groups, heads, d_kv, d_kv], sums of h h^T, by the last group of
      columns that a query sees.
    products: <float64>[heads, d_kv, positions], sums of h times the logits.
    seeing: <float64>[positions], how many queries see n + 1 keys.
    size: the number of columns of a group.
    shared: whether all heads share W2.

  Returns:
    <float64>[heads, d_kv, positions], or [d_kv, positions] if shared.
  """
  if shared:
    squares, products = squares.sum(1, keepdims=True), products.sum(0, keepdims=True)
  hidden, length = products.shape[1:]
  beyond = np.cumsum(squares[::-1], 0)[::-1] - squares  # Of later groups.
  mean = np.trace(squares.sum(0), axis1=1, axis2=2).mean() / hidden / max(
      seeing.sum(), 1)
  found = np.zeros(products.shape)
  for column in range(length):
    group = column // size
    among = seeing[group * size:(group + 1) * size]
    share = among[column - group * size:].sum() / max(among.sum(), 1)
    normal = beyond[group] + share * squares[group] + _RIDGE * max(
        mean, 1e-12) * np.eye(hidden)
    found[:, :, column] = np.linalg.solve(
        normal, products[:, :, column, None])[..., 0]
  return found[0] if shared else found
