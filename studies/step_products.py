"""Times the products of a decoding step, each in a loop of its own, by several ways.

  python -m studies.step_products --rows=1,4,16

It shows which operation of TensorFlow multiplies fastest on a machine, and what the
loop itself costs. The sizes are those of `tools/benchmark/`. All ways take turns. The
table has the microseconds of a step above those of an empty loop.
"""

import argparse
from collections.abc import Callable
import functools
import statistics
import time

from synthesizer_mtf.fast.decoding import top_tokens
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.benchmark import model
import tensorflow.compat.v1 as tf

_STEPS = 20  # Of a loop.
_OPERATIONS = 100  # That do next to nothing.
_BLOCKS = 8  # Of the vocabulary.
Step = Callable[[tf.Tensor], tf.Tensor]


def with_matrix(columns: int, channels: int) -> dict[str, Step]:
  """The ways to multiply rows with one matrix, which the loop does not change.

  Args:
    columns: of the matrix <float32>[channels, columns].
    channels: its rows.

  Returns:
    a dict from names to functions from <float32>[rows, channels] to <float>[rows,
    columns].
  """
  matrix = _values([channels, columns])
  rounded = tf.cast(matrix, tf.bfloat16)
  return {
      "MatMul": lambda x: tf.matmul(x, matrix),
      "MatMul of each row": lambda x: tf.concat(
          [tf.matmul(row, matrix) for row in tf.split(x, x.shape[0])], 0),
      "Einsum": lambda x: tf.einsum("ab,bc->ac", x, matrix),
      "BatchMatMulV3": lambda x: tf.raw_ops.BatchMatMulV3(
          x=x, y=matrix, Tout=tf.float32),
      "MatMul, bfloat16": lambda x: tf.matmul(tf.cast(x, tf.bfloat16), rounded),
      "Einsum, bfloat16": lambda x: tf.einsum(
          "ab,bc->ac", tf.cast(x, tf.bfloat16), rounded),
      "int8": in_int8(matrix)}


def in_int8(matrix: tf.Tensor) -> Step:
  """The product with a matrix in int8: symmetric, with a scale for each column.

  oneDNN multiplies unsigned with signed numbers, so 128 is added to the rows, and the
  product of 128 with the sum of each column is subtracted again.

  Args:
    matrix: <float32>[channels, columns]

  Returns:
    a function from <float32>[rows, channels] to <float32>[rows, columns].
  """
  scale = tf.reduce_max(tf.abs(matrix), 0)
  whole = tf.round(matrix / scale * 127)
  sums, matrix = tf.reduce_sum(whole, 0), tf.cast(whole, tf.int8)
  none = tf.zeros_like(sums)

  def product(x):
    unit = tf.reduce_max(tf.abs(x)) / 127
    shifted = tf.cast(tf.round(x / unit) + 128, tf.uint8)
    found = tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(
        a=tf.bitcast(shifted, tf.quint8), b=tf.bitcast(matrix, tf.qint8), bias=none,
        min_a=0.0, max_a=255 * unit, min_b=-1.0, max_b=1.0, min_freezed_output=0.0,
        max_freezed_output=1.0, Toutput=tf.float32, input_quant_mode="SCALED")
    return (found - unit * 128 / 127 * sums) * scale

  return product


def with_each_matrix(batch: int, heads: int, columns: int,
                     channels: int) -> dict[str, Step]:
  """The ways to multiply queries with the keys of their own text and head.

  Args:
    batch: the number of texts.
    heads: of each.
    columns: the number of keys <float32>[batch, heads, columns, channels].
    channels: of a key.

  Returns:
    a dict from names to functions from <float32>[batch, heads, rows, channels] to
    <float>[batch, heads, rows, columns].
  """
  keys = _values([batch, heads, columns, channels])
  rounded = tf.cast(keys, tf.bfloat16)
  equation = "abcd,abed->abce"
  return {
      "Einsum": lambda x: tf.einsum(equation, x, keys),
      "BatchMatMulV3": lambda x: tf.raw_ops.BatchMatMulV3(
          x=x, y=keys, adj_y=True, Tout=tf.float32),
      "Einsum, bfloat16": lambda x: tf.einsum(
          equation, tf.cast(x, tf.bfloat16), rounded)}


def best_token(columns: int, channels: int) -> dict[str, Step]:
  """The ways to find the column whose product is greatest.

  Args:
    columns: of the matrix <float32>[channels, columns].
    channels: its rows.

  Returns:
    a dict from names to functions from <float32>[rows, channels] to <int32>[rows, 1].
  """
  matrix = _values([channels, columns])
  blocks = tf.split(matrix, _BLOCKS, 1)

  def whole(x):
    return top_tokens.top_k(tf.matmul(x, matrix), 1)[1]

  def by_blocks(x):
    found = [tf.matmul(x, block) for block in blocks]
    best = [tf.reduce_max(block, -1) for block in found]
    where = [tf.argmax(block, -1, output_type=tf.int32) for block in found]
    block = tf.argmax(tf.stack(best, 1), -1, output_type=tf.int32)
    column = tf.gather(tf.stack(where, 1), block[:, None], batch_dims=1)
    return block[:, None] * (columns // _BLOCKS) + column

  return {"whole": whole, "by blocks": by_blocks}


def measure(ways: dict[str, Step], x: tf.Tensor, repeats: int) -> dict[str, float]:
  """Times ways in turns.

  Args:
    ways: a dict from names to functions of x.
    x: <float32>, in TensorFlow's default graph.
    repeats: the number of rounds, after one that does not count.

  Returns:
    a dict from names to the median microseconds of a step above an empty loop, which
    has the name "".
  """
  small = tf.placeholder_with_default(1e-30, [])  # TensorFlow does not know its value.
  loops = {name: _loop(step, x, small) for name, step in [
      ("", lambda x: x), *ways.items()]}
  seconds = {name: [] for name in loops}
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(repeats + 1):
      for name, loop in loops.items():
        began = time.perf_counter()
        session.run(loop)
        seconds[name].append(time.perf_counter() - began)
  found = {name: statistics.median(each[1:]) / _STEPS * 1e6
           for name, each in seconds.items()}
  return {name: each - found[""] * bool(name) for name, each in found.items()}


def _loop(step, x, small):
  """The operation of a loop, in which each step waits for the step before."""
  def body(i, x):
    result = step(x)
    first = tf.slice(result, [0] * result.shape.ndims, [1] * result.shape.ndims)
    return i + 1, x + tf.cast(tf.reshape(first, []), tf.float32) * small

  return tf.while_loop(lambda i, _: i < _STEPS, body, [0, x])[1].op


def _values(shape):
  return tf.Variable(tf.random_normal(shape), use_resource=True).read_value()


def _chain() -> dict[str, Step]:
  """Operations that each wait for the one before; Grappler cannot join them."""
  limit = _values([1])

  def minima(x):
    for _ in range(_OPERATIONS):
      x = tf.minimum(x, limit)
    return x

  return {"Minimum": minima}


def measure_all(config: model.Configuration, rows: int,
                repeats: int) -> dict[str, dict[str, float]]:
  """Times all products of a step, as `measure` does, by name."""
  d_model, d_ff = config.d_model, config.d_ff
  cases: dict[str, tuple[list[int], Callable[[], dict[str, Step]]]] = {
      f"{rows} x {k} with {k} x {n}": (
          [rows, k], functools.partial(with_matrix, n, k))
      for k, n in ((d_model, d_model), (d_model, d_ff), (d_ff, d_model),
                   (d_model, config.vocabulary))}
  cases[f"{rows} x {config.num_heads} queries with {config.inputs} keys of each"] = (
      [rows, config.num_heads, 1, config.d_kv], lambda: with_each_matrix(
          rows, config.num_heads, config.inputs, config.d_kv))
  cases[f"best of {config.vocabulary} for {rows}"] = (
      [rows, d_model], lambda: best_token(config.vocabulary, d_model))
  cases[f"{_OPERATIONS} operations on one number"] = [1], _chain
  results = {}
  for name, (shape, ways) in cases.items():
    with tf.Graph().as_default():
      results[name] = measure(ways(), _values(shape), repeats)
  return results


def table(results: dict[str, dict[str, float]]) -> str:
  """Formats what `measure_all` returned as a table in Markdown."""
  lines = ["| product | microseconds of each way | empty loop |", "|---|---|---|"]
  for name, found in results.items():
    ways = ", ".join(f"{way} {value:.0f}" for way, value in found.items() if way)
    lines.append(f"| {name} | {ways} | {found['']:.0f} |")
  return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
  """Parses flags, measures and prints the tables."""
  parser = argparse.ArgumentParser(
      prog="step_products", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      "--rows", type=lambda text: [arguments.positive(n) for n in text.split(",")],
      default=[1, 16], metavar="N,N,...", help="texts at once (default: 1,16)")
  parser.add_argument("--repeats", type=arguments.positive, default=9, metavar="N",
                      help="rounds that count (default: %(default)s)")
  for size in ("vocabulary", "d_model", "d_ff", "inputs"):
    parser.add_argument(f"--{size}", type=arguments.positive, metavar="N",
                        default=getattr(model.Configuration, size),
                        help="as for tools/benchmark/ (default: %(default)s)")
  args = parser.parse_args(argv)
  tf.disable_v2_behavior()
  config = model.Configuration(
      vocabulary=args.vocabulary, d_model=args.d_model, d_ff=args.d_ff,
      inputs=args.inputs)
  for rows in args.rows:
    print(table(measure_all(config, rows, args.repeats)), end="\n\n", flush=True)


if __name__ == "__main__":
  main()
