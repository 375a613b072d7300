"""Attention layers with random parameters against NumPy, from the paper.

Two hundred cases, the same on every machine, are part of the suite. For others,
and for more of them:

  HYPOTHESIS_CASES=2000 python -m pytest tests/stack/test_random_configurations.py \
    --hypothesis-profile=many --hypothesis-seed=1

A case that fails is shrunk and printed as Python; put it into an `@example`.
"""

import collections

import gin
from hypothesis import example
from hypothesis import given
import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import cases as table
from support import harness
from support import reference
from support.random_cases import Case
from support.random_cases import cases
from support.random_cases import Layer
import synthesizer_mtf
from synthesizer_mtf.ops import attend
import tensorflow.compat.v1 as tf


@pytest.fixture(autouse=True)
def few_words():
  """Hides warnings, because those of all cases would hide the case that fails."""
  verbosity = tf.logging.get_verbosity()
  tf.logging.set_verbosity(tf.logging.ERROR)
  yield
  tf.logging.set_verbosity(verbosity)


@given(case=cases())
@example(case=Case(  # a second V had the q of the first
    [Layer("V+V", {"SyntheticAttention.num_heads": 2,
                   "SyntheticAttention.key_value_size": 3,
                   "SyntheticAttention.softmax": True})], [[2]], 2))
@example(case=Case(  # without a softmax, parts before the first with a batch
    [Layer("Fix+R+D", {"SyntheticAttention.num_heads": 1,
                       "SyntheticAttention.key_value_size": 3,
                       "SyntheticAttention.softmax": False,
                       "FixedRandomLogits.max_length": 4,
                       "RandomLogits.max_length": 3,
                       "DenseLogits.max_length": 2})], [[2], [2]], 2))
def test_any_layer_equals_the_papers_formulas(case):
  check(case)


def check(case):
  """Runs the layers of a case in one graph and compares their outputs."""
  layers = [make(layer) for layer in case.layers]
  ids = segments(case)
  rows = len(ids)
  x = np.random.RandomState(case.seed).randn(
      rows, case.length, case.d_model).astype(np.float32)
  outputs, variables = run(case, layers, ids, x)
  real = ids > 0
  shared_bias = {}
  for i, (layer, y) in enumerate(zip(case.layers, outputs)):
    p = {name[2:]: value.astype(np.float64) for name, value in variables.items()
         if name.startswith(f"{i}/")}
    heads = layer.get("num_heads")
    if layer.get("relative_attention_type") == "bias_shared":
      # The first layer of the stack with this number of heads holds the shared bias.
      p["relative_attention_bias"] = shared_bias.setdefault(
          heads, p.get("relative_attention_bias"))
    assert {name: list(v.shape) for name, v in p.items()} == shapes(case, layer)
    expected = formula(case, layer, p, x.astype(np.float64), ids)
    assert np.isfinite(y).all()
    scale = max(1, np.abs(expected[real]).max(initial=0))
    np.testing.assert_allclose(
        y[real], expected[real], rtol=0, atol=5e-5 * scale)


def make(layer):
  """Makes a layer as a gin file does."""
  gin.clear_config()
  for name, value in layer.parameters.items():
    gin.bind_parameter(name, value)
  return synthesizer_mtf.attention_layer(layer.notation)


# The inputs of the layer.


def segments(case):
  """The ids of the examples, 0 for padding: [batch, length]."""
  ids = np.zeros([len(case.rows) * max(1, case.beams), case.length], int)
  if case.mode == "steps":
    return ids + 1
  for row, examples in zip(ids, case.rows):
    row[:sum(examples)] = np.repeat(range(1, len(examples) + 1), examples)
  return ids


def priority(case):
  """The priorities; a token sees tokens whose priority is not higher than its own."""
  positions = np.arange(case.length)[None]
  if case.prefix is None:
    return positions
  return positions * (positions >= np.array(case.prefix)[:, None])


class Stack:
  """Calls several layers with the same tokens, each in a scope of its own."""

  def __init__(self, layers):
    self._layers = layers

  def call(self, context, x):
    outputs = []
    for i, layer in enumerate(self._layers):
      with tf.variable_scope(str(i)):
        outputs.append(layer.call(context, x))
    return outputs


def run(case, layers, ids, x):
  """The outputs of all layers [batch, length, d_model], and the variables."""
  graph = harness.LayerGraph(
      Stack(layers), case.decoder, len(case.rows), case.length, seed=case.seed,
      scale=None if case.initial else 0.5, mesh_shape=case.mesh_shape,
      layout="batch:batch,heads:model", d_model=case.d_model,
      input_full_attention=case.prefix is not None)
  at_once = attend._QUERY_CHUNK_SIZE
  attend._QUERY_CHUNK_SIZE = case.queries_at_a_time
  try:
    with graph.tf_graph.as_default():
      if case.mode == "steps":
        return decode(case, graph, x)
      dims = graph.batch_dim, graph.length_dim
      context = graph.context(case.mode, **marks(case, graph, ids))
      outputs = graph.call(context, graph.constant(x, *dims, graph.d_model))
      return graph.run(*outputs), graph.variables
  finally:
    attend._QUERY_CHUNK_SIZE = at_once


def marks(case, graph, ids):
  """The context's arguments about examples and priorities."""
  dims = graph.batch_dim, graph.length_dim
  found = {}
  if case.prefix is not None:
    order = graph.constant(priority(case), *dims)
    found = {"read_priority": order, "write_priority": order}
  if case.ids == "made up":
    found["sequence_id"] = mtf.minimum(graph.constant(ids * 9, *dims), 1)
  elif case.ids == "features":
    found["sequence_id"] = graph.constant(ids, *dims)
  elif case.ids == "subsequences":  # two targets of each input
    found["sequence_id"] = graph.constant((ids + 1) // 2, *dims)
    found["subsequence_id"] = graph.constant(ids, *dims)
  return found


def decode(case, graph, x):
  """Reads a prefix at once and then one token in each step, as Mesh does."""
  start = np.array(case.rows)[:, 0]
  batch_dims = [graph.batch_dim]
  if case.beams:
    batch_dims.append(mtf.Dimension("beam", case.beams))
  shape = [d.size for d in batch_dims]
  x = x.reshape(shape + [case.length, case.d_model])
  reached = start.reshape([-1] + [1] * len(shape))
  positions = np.arange(case.length)
  # The tokens after the prefix must have no effect.
  known = np.where((positions < reached)[..., None], x, 7.0)
  context = graph.context("first_part", batch_dims=batch_dims, new_states=[],
                          position_is_default=True)
  outputs = graph.call(context, graph.constant(
      known, *batch_dims, graph.length_dim, graph.d_model))
  turns = [(positions < reached, outputs)]
  for step in range(case.length - start.min()):
    position = start + step
    here = np.minimum(position, case.length - 1)
    tokens = np.stack([row[..., i, :] for row, i in zip(x, here)])
    scalar = bool(case.beams)
    context = graph.context(
        "incremental", batch_dims=batch_dims, states=context.new_states,
        new_states=[], position=graph.constant(
            position[0] if scalar else position,
            *(() if scalar else batch_dims)))
    context.read_priority = context.position
    turns.append((positions == position.reshape(reached.shape), graph.call(
        context, graph.constant(tokens, *batch_dims, graph.d_model))))
  return join(turns, graph, x)


def join(turns, graph, x):
  """Joins the outputs of a decoding's turns, each for its own positions."""
  values = iter(graph.run(*[y for _, outputs in turns for y in outputs]))
  results = [np.zeros_like(x) for _ in turns[0][1]]
  for where, outputs in turns:
    for result in results:
      y = next(values)
      y = y if y.ndim == x.ndim else y[..., None, :]
      np.copyto(result, y, where=where[..., None])
    del outputs
  return [r.reshape((-1,) + x.shape[-2:]) for r in results], graph.variables


# The expected outputs.


def variables_of(case, layer, part):
  """The variables of one part, and their shapes."""
  return table.VARIANTS[part].variables(layer.of_part(part), table.Sizes(
      case.d_model, layer.get("num_heads"), layer.get("key_value_size"),
      sees_later(case)))


def sees_later(case):
  """Whether queries see later keys, as T5's models of these kinds do."""
  return not case.decoder or case.prefix is not None


def scoped(case, layer):
  """For each part, a dict from its variables' names to their names in the layer.

  Parts with a name in common have scopes. Only `q` is shared, if D's parameter says so.
  """
  parts = [variables_of(case, layer, part) for part in layer.parts]
  count = collections.Counter(name for part in parts for name in part)
  shared = "q" if any(
      layer.of_part(part).get("share_query") for part in layer.parts) else None
  result = []
  for i, part in enumerate(parts):
    clash = any(count[name] > 1 for name in part if name != shared)
    result.append({name: f"part_{i}/{name}" if clash and name != shared else name
                   for name in part})
  return result


def shapes(case, layer):
  """All variables of a layer, and their shapes."""
  heads, width = layer.get("num_heads"), (
      layer.get("num_heads") * layer.get("key_value_size"))
  found = {"v": [case.d_model, width], "o": [width, case.d_model]}
  for part, names in zip(layer.parts, scoped(case, layer)):
    own = variables_of(case, layer, part)
    found.update({names[name]: own[name] for name in own})
  weights = layer.get("Mixture.weights", "per_head")
  if len(layer.parts) > 1 and weights != "sum":
    found["alpha"] = [heads] * (weights == "per_head") + [len(layer.parts)]
  if layer.get("relative_attention_type"):
    found["relative_attention_bias"] = [
        heads, layer.get("relative_attention_num_buckets")]
  return found


def formula(case, layer, p, x, ids):
  """The output of a layer by the formulas: [batch, length, d_model]."""
  heads = layer.get("num_heads")
  logits = [table.VARIANTS[part].logits(
      {own: p[name] for own, name in names.items()}, table.Call(
          x, ids, heads, case.decoder, layer.of_part(part)))
            for part, names in zip(layer.parts, scoped(case, layer))]
  alpha = np.ones([heads, len(logits)])
  if "alpha" in p:
    alpha *= reference.softmax(p["alpha"])
  total = np.einsum("hp,pbhij->bhij", alpha, logits)
  if layer.get("relative_attention_type"):
    total += reference.relative_bias(
        p["relative_attention_bias"], case.length, not sees_later(case))
  mask = ids[:, :, None] == ids[:, None, :]
  if case.decoder:
    order = priority(case)
    mask = mask & (order[:, :, None] >= order[:, None, :])
  return reference.output(
      total, p, x, mask, heads, use_softmax=layer.get("softmax"))
