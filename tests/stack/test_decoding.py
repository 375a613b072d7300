"""Step-by-step decoding of whole models reads the same weights as the full pass.

test_random_configurations.py takes single steps of all mixtures, also with beams.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from support import models
from support.decoding import parse
import tensorflow.compat.v1 as tf


def states(attention):
  """The shapes of a language model's decoding state after the first part."""
  parse(attention)
  m = models.Model("lm")
  with m.tf_graph.as_default():
    batch, length = mtf.Dimension("batch", 1), mtf.Dimension("length", 9)
    context = transformer.Context(
        model=m.model, mesh=m.mesh, batch_dims=[batch], length_dim=length,
        variable_dtype=mtf.VariableDType(), mode="first_part", new_states=[],
        position=mtf.range(m.mesh, length, tf.int32), position_is_default=True,
        initial_position=mtf.constant(m.mesh, 5, mtf.Shape([batch]), tf.int32))
    with tf.variable_scope("decoder"):
      m.model._call_internal(context, m.ids([[2, 3, 4, 5, 6, 0, 0, 0, 0]]))
  return [state.shape.to_integer_list for state in context.new_states]


def test_only_values_and_keys_that_are_needed_are_cached():
  counts = {notation: len(states([notation]))
           for notation in ("R", "D", "FD", "V", "R+V")}
  assert counts == {"R": 1, "D": 1, "FD": 1, "V": 2, "R+V": 2}


def test_convolutions_cache_only_the_tokens_under_the_kernel():
  assert states(["LightConv", "DyConv"]) == [[1, 4, 12, 1], [1, 4, 2, 6]]
