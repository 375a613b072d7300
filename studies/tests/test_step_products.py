"""The products of a decoding step, which `step_products` times by several ways."""

import numpy as np
import pytest
from studies import step_products
import tensorflow.compat.v1 as tf

ROWS, CHANNELS, COLUMNS, BATCH, HEADS = 3, 64, 128, 2, 5


def results(make, shape):
  """What each way returns, the variable that it reads, and x, as NumPy arrays."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    x = tf.constant(np.random.RandomState(0).randn(*shape), tf.float32)
    found = {name: step(x) for name, step in make().items()}
    session.run(tf.global_variables_initializer())
    return *session.run([found, tf.global_variables()[0]]), session.run(x)


def check(found, expected):
  for name, product in found.items():
    off = np.abs(product.astype(np.float32) - expected).max() / np.abs(expected).max()
    assert off < (2e-2 if "8" in name or "16" in name else 1e-6), name


def test_all_ways_multiply_with_one_matrix():
  found, matrix, x = results(
      lambda: step_products.with_matrix(COLUMNS, CHANNELS), (ROWS, CHANNELS))
  check(found, np.einsum("ab,bc->ac", x, matrix))
  assert np.abs(found["int8"] - found["MatMul"]).max() > 0


def test_all_ways_multiply_with_the_keys_of_each():
  found, keys, x = results(
      lambda: step_products.with_each_matrix(BATCH, HEADS, COLUMNS, CHANNELS),
      (BATCH, HEADS, ROWS, CHANNELS))
  check(found, np.einsum("abcd,abed->abce", x, keys))


def test_blocks_have_the_best_token_of_the_whole_vocabulary():
  found, matrix, x = results(
      lambda: step_products.best_token(COLUMNS, CHANNELS), (ROWS, CHANNELS))
  for way in found.values():
    np.testing.assert_array_equal(way[:, 0], (x @ matrix).argmax(-1))


@pytest.mark.slow
def test_the_command_prints_a_table_for_each_number_of_rows(capsys):
  step_products.main(["--rows=1,2", "--repeats=1", "--vocabulary=256", "--d_model=8",
                      "--d_ff=16", "--inputs=8"])
  lines = capsys.readouterr().out.splitlines()
  assert sum(line.startswith("| product |") for line in lines) == 2
  assert any(line.startswith("| 2 x 16 with 16 x 8 | MatMul ") for line in lines)
