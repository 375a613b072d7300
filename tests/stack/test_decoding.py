"""Step-by-step decoding reads the same weights as the full pass."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import cases
from support import models
from support.decoding import check_beam_search
from support.decoding import check_continuation
from support.decoding import check_greedy_decoding
from support.decoding import EOS
from support.decoding import parse
import tensorflow.compat.v1 as tf


# test_random_configurations.py takes single steps of all mixtures, also with beams.
@pytest.mark.parametrize("notation, bias", [
    (n, "None") for n in cases.VARIANTS] + [
        (n, "'bias_shared'") for n in ("V", "R", "FR+D+V")])
def test_greedy_decoding_gives_the_argmax_of_the_full_pass(notation, bias):
  parse(notation, f"SyntheticAttention.relative_attention_type = {bias}",
        f"num_layers = {1 if bias == 'None' else 2}")
  check_greedy_decoding()


@pytest.mark.slow
@pytest.mark.parametrize("notation, layers", [
    ("R", 1), ("T", 1), ("FR+D+V", 2), ("Fix+FD+V", 1), ("Pattern", 1)])
def test_beam_search_scores_its_result_as_the_full_pass_does(notation, layers):
  parse(notation, f"num_layers = {layers}")
  check_beam_search()


@pytest.mark.slow
@pytest.mark.parametrize("notation, prefix", [
    (name, True) for name in cases.VARIANTS] + [
        (name, False) for name in ("R", "T", "FR+D+V", "Fix+FD+V", "Pattern")])
def test_a_language_model_continues_as_the_full_pass(notation, prefix):
  parse(notation, f"Unitransformer.input_full_attention = {prefix}")
  m = models.Model("lm")
  start = np.array([[5, 9, EOS, 0, 0, 0, 0, 0], [8, EOS, 0, 0, 0, 0, 0, 0]])
  check_continuation(m, start)


def test_only_values_and_keys_that_are_needed_are_cached():
  states = {}
  for notation in ("R", "D", "FD", "V", "R+V"):
    parse(notation)
    m = models.Model("lm")
    with m.tf_graph.as_default():
      context = transformer.Context(
          model=m.model, mesh=m.mesh, batch_dims=[mtf.Dimension("batch", 1)],
          length_dim=mtf.Dimension("length", 4),
          variable_dtype=mtf.VariableDType(), mode="first_part", new_states=[],
          position=mtf.range(m.mesh, mtf.Dimension("length", 4), tf.int32),
          position_is_default=True)
      with tf.variable_scope("decoder"):
        m.model._call_internal(context, m.ids([[2, 3, 4, 5]]))
    states[notation] = len(context.new_states) / 2  # two blocks
  assert states == {"R": 1, "D": 1, "FD": 1, "V": 2, "R+V": 2}
