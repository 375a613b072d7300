"""R without a softmax as an MLP-Mixer's token mixing.

test_random_configurations.py draws attention without a softmax, too.
"""

import numpy as np
import pytest
from support import cases
from support import harness
from support import models
from support.examples import tokens
import synthesizer_mtf
import tensorflow.compat.v1 as tf


@pytest.mark.parametrize("heads", [1, 3])
def test_r_is_token_mixing_by_a_linear_map_on_the_transposed_tokens(heads):
  """Tolstikhin et al.: transpose to channels x tokens, Dense, transpose back."""
  x = tokens()[..., :9]
  eye = np.eye(11, 9, dtype=np.float32)
  layer = synthesizer_mtf.attention_layer(
      "R", num_heads=heads, key_value_size=9 // heads, max_length=7,
      dropout_rate=0.0, softmax=False)
  wide = np.concatenate([x, np.zeros([2, 7, 2])], -1).astype(np.float32)
  y, graph = harness.forward(layer, wide, False, values={"v": eye, "o": eye.T})
  with tf.Graph().as_default(), tf.Session() as session:
    groups = tf.split(tf.transpose(tf.constant(x), [0, 2, 1]), heads, axis=1)
    mixed = [tf.keras.layers.Dense(
        7, use_bias=False,
        kernel_initializer=tf.constant_initializer(kernel.T))(group)
             for group, kernel in zip(groups, graph.variables["R"])]
    session.run(tf.global_variables_initializer())
    mixed = session.run(tf.transpose(tf.concat(mixed, axis=1), [0, 2, 1]))
  np.testing.assert_allclose(y[..., :9], mixed, atol=1e-5)
  assert np.abs(mixed).max() > 1


def test_an_example_of_padding_alone_gives_zeros():
  ids = np.array([[1] * 7, [0] * 7])
  for notation in ("R", "FR+D+V"):
    y, _ = harness.forward(
        cases.make_layer(notation, softmax=False), tokens(), False, ids)
    assert np.all(y[1] == 0) and np.abs(y[0]).min() > 0


def test_the_scale_in_the_gin_file_keeps_the_scale_of_the_values():
  x = tokens(length=512)
  models.parse_gin(["attention/mixer.gin"], models.TINY + ["num_heads = 1",
                                                           "d_kv = 11"])
  layer = models.build().encoder.layer_stack.layers[0]
  eye = np.eye(11, dtype=np.float32)
  y, _ = harness.forward(layer, x, False, scale=None,
                         values={"v": eye, "o": eye})
  assert 0.8 < y.std() / x.std() < 1.25
