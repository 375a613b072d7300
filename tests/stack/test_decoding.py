"""Step-by-step decoding of whole models reads the same weights as the full pass.

test_random_configurations.py takes single steps of all mixtures, also with beams.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import models
from support.decoding import check_beam_search
from support.decoding import check_continuation
from support.decoding import check_greedy_decoding
from support.decoding import EOS
from support.decoding import parse
import tensorflow.compat.v1 as tf

# The attentions of a decoder's blocks. Each variant is in one of the rows.
SHARED_BIAS = "SyntheticAttention.relative_attention_type = 'bias_shared'"
NO_SOFTMAX = "SyntheticAttention.softmax = False"


@pytest.mark.slow
@pytest.mark.parametrize("attention, bindings", [
    (["R+T", "Fix+FD", "V"], []), (["FR+D+V", "Pattern", "R"], [SHARED_BIAS]),
    (["R", "D+V"], [NO_SOFTMAX]), (["LightConv", "DyConv"], []),
    (["SparseFixed", "SparseStrided"], [])], ids=str)
def test_greedy_decoding_gives_the_argmax_of_the_full_pass(attention, bindings):
  parse((["V"], attention), *bindings)
  check_greedy_decoding()


@pytest.mark.slow
@pytest.mark.parametrize("attention, bindings", [
    (["R+T", "Fix+FD+V"], []), (["FR+D+V", "Pattern"], [SHARED_BIAS]),
    (["DyConv", "SparseFixed"], [])], ids=str)
def test_beam_search_scores_its_result_as_the_full_pass_does(attention, bindings):
  parse((["V"], attention), *bindings)
  check_beam_search()


@pytest.mark.slow
@pytest.mark.parametrize("prefix, attention, bindings", [
    (True, ["R+T+Pattern", "Fix+FD", "FR+D+V"], []),
    (False, ["R+T+Pattern", "Fix+FD", "FR+D+V"], []),
    (True, ["LightConv", "DyConv"], ["LightConv.kernel_size = 30",
                                     "DyConv.kernel_size = 30"]),
    (False, ["LightConv", "DyConv"], []),
    (True, ["SparseFixed", "SparseStrided"], [])], ids=str)
def test_a_language_model_continues_as_the_full_pass(prefix, attention, bindings):
  parse(attention, f"Unitransformer.input_full_attention = {prefix}", *bindings)
  m = models.Model("lm")
  start = np.array([[5, 9, EOS, 0, 0, 0, 0, 0, 0, 0],
                    [8, 3, 7, 2, 4, 6, EOS, 0, 0, 0]])
  check_continuation(m, start)


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
  found = {notation: len(states([notation]))
           for notation in ("R", "D", "FD", "V", "R+V")}
  assert found == {"R": 1, "D": 1, "FD": 1, "V": 2, "R+V": 2}


def test_convolutions_cache_only_the_tokens_under_the_kernel():
  assert states(["LightConv", "DyConv"]) == [[1, 4, 12, 1], [1, 4, 2, 6]]
