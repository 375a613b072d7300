"""Attention layers with random parameters against NumPy, from the paper.

The suite has 12 cases for each variant, the same on every machine. For others, and
for more of them:

  HYPOTHESIS_CASES=2000 python -m pytest tests/stack/test_random_configurations.py \
    --hypothesis-profile=many --hypothesis-seed=1

A case that fails is shrunk and printed as Python; put it into the last table.
"""

import collections
from unittest import mock

import gin
import hypothesis
import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import cases as table
from support import harness
from support import reference
from support import whole_layers
from support.random_cases import Case
from support.random_cases import cases
from support.random_cases import Layer
from support.random_cases import PACKED
from support.random_cases import PADDED
import synthesizer_mtf
from synthesizer_mtf.fast import kernels
import tensorflow.compat.v1 as tf

# Modes and meshes, stacks, how examples and padding are marked, whether on TPUs, and
# the number of cases for each variant. Each device and each step adds a graph. In
# decoders the causal mask hides padding, so encoders have cases of their own.
ENCODER, DECODER, ANY_STACK = [False], [True], [False, True]
CPU, TPU, ANY = [False], [True], ["none", *PADDED, *PACKED]
TRAIN = [("train", "")]
KINDS = [
    ((TRAIN, ENCODER, ["made up"], CPU), 2), ((TRAIN, DECODER, PADDED, CPU), 1),
    ((TRAIN, ENCODER, ["features"], CPU), 1), ((TRAIN, DECODER, PACKED, CPU), 2),
    ((TRAIN, ANY_STACK, PADDED, TPU), 1), ((TRAIN, ANY_STACK, PACKED, TPU), 1),
    (([("eval", "")], ANY_STACK, ANY, CPU + TPU), 1),
    (([("train", "batch:2"), ("train", "model:2"), ("train", "batch:2,model:2")],
      ANY_STACK, ANY, CPU + TPU), 1),
    (([("steps", ""), ("steps", "model:2")], DECODER, ["none"], CPU), 2)]


@pytest.fixture(autouse=True)
def few_words():
  """Hides warnings, because those of all cases would hide the case that fails."""
  tf.logging.set_verbosity(tf.logging.ERROR)


@pytest.mark.parametrize("part", [*table.VARIANTS, *whole_layers.LAYERS])
def test_any_layer_equals_the_papers_formulas(part):
  default = hypothesis.settings.default
  for i, (kind, count) in enumerate(KINDS):

    @hypothesis.settings(max_examples=max(1, default.max_examples * count // 120))
    @hypothesis.given(case=cases(part, *kind))
    def run(case):
      check(case)

    if default.derandomize:  # Without its own seed, each variant has the same cases.
      run = hypothesis.seed(100 * sum(map(ord, part)) + i)(run)
    run()


@pytest.mark.parametrize("layer, rows", [
    # A second V had the q of the first.
    (Layer("V+V", {"SyntheticAttention.num_heads": 2,
                   "SyntheticAttention.key_value_size": 3,
                   "SyntheticAttention.softmax": True}), [[2]]),
    # Without a softmax, parts before the first with a batch
    (Layer("Fix+R+D", {"SyntheticAttention.num_heads": 1,
                       "SyntheticAttention.key_value_size": 3,
                       "SyntheticAttention.softmax": False,
                       "FixedRandomLogits.max_length": 4,
                       "RandomLogits.max_length": 3,
                       "DenseLogits.max_length": 2}), [[2], [2]])])
def test_layers_that_were_wrong_once(layer, rows):
  check(Case([layer], rows, 2))


def check(case):
  """Runs the layers of a case in one graph; compares outputs and gradients."""
  layers = [make(layer) for layer in case.layers]
  generator = np.random.RandomState(case.seed)
  size = len(case.segments), case.length, case.d_model
  x, weights = generator.randn(2, *size).astype(np.float32)
  real = case.segments > 0
  weights *= real[..., None]
  outputs, grads, variables = run(case, layers, x, weights)
  values = {name: value.astype(np.float64) for name, value in variables.items()}
  for y, expected in zip(outputs, formulas(case, values, x)):
    assert np.isfinite(y).all()
    scale = max(1, np.abs(expected[real]).max(initial=0))
    error = 5e-5 if case.activation == "float32" else 0.05
    np.testing.assert_allclose(
        y[real], expected[real], rtol=0, atol=error * scale)
  assert all(np.isfinite(grad).all() for grad in grads.values())
  if case.mode == "train":
    assert set(grads) == set(values) - frozen(case)
  if case.activation == "float32":
    reference.check_gradients(grads, values, lambda values: sum(
        (y * weights).sum() for y in formulas(case, values, x)))


def make(layer):
  """Makes a layer as a gin file does."""
  gin.clear_config()
  for name, value in layer.parameters.items():
    gin.bind_parameter(name, value)
  return synthesizer_mtf.attention_layer(layer.notation)


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


def run(case, layers, x, weights):
  """The outputs of all layers [batch, length, d_model], gradients and variables."""
  graph = harness.LayerGraph(
      Stack(layers), case.decoder, len(case.rows), case.length, seed=case.seed,
      scale=None if case.initial else 0.5, mesh_shape=case.mesh_shape,
      layout="batch:batch,heads:model", d_model=case.d_model, tpu=case.tpu,
      activation=case.activation, input_full_attention=case.prefix is not None)
  with mock.patch.object(kernels, "_QUERY_CHUNK_SIZE", case.queries_at_a_time):
    with graph.tf_graph.as_default():
      if case.mode == "steps":
        return decode(case, graph, x), {}, graph.variables
      dims = graph.batch_dim, graph.length_dim
      outputs = graph.call(graph.context(case.mode, **marks(case, graph)),
                           graph.constant(x, *dims, graph.d_model))
      grads = graph.gradients(outputs, weights) if case.mode == "train" else {}
      values = graph.run(*outputs, *grads.values())
  return values, dict(zip(grads, values[len(outputs):])), graph.variables


def marks(case, graph):
  """The context's arguments about examples and priorities."""
  dims, ids = (graph.batch_dim, graph.length_dim), case.segments
  arguments = {}
  if case.prefix is not None:
    order = graph.constant(case.priority, *dims)
    arguments = {"read_priority": order, "write_priority": order}
  if case.ids == "made up":
    arguments["sequence_id"] = mtf.minimum(graph.constant(ids * 9, *dims), 1)
  elif case.ids in ("one", "features"):
    arguments["sequence_id"] = graph.constant(ids, *dims)
  elif case.ids == "subsequences":  # two targets of each input
    arguments["sequence_id"] = graph.constant((ids + 1) // 2, *dims)
    arguments["subsequence_id"] = graph.constant(ids, *dims)
  return arguments


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
  scalar = bool(case.beams)
  initial = [start[0]] if scalar else [start, *batch_dims]
  context = graph.context(
      "first_part", batch_dims=batch_dims, new_states=[], position_is_default=True,
      initial_position=graph.constant(*initial))
  outputs = graph.call(context, graph.constant(
      known, *batch_dims, graph.length_dim, graph.d_model))
  turns = [(positions < reached, outputs)]
  for step in range(case.length - start.min()):
    position = start + step
    here = np.minimum(position, case.length - 1)
    tokens = np.stack([row[..., i, :] for row, i in zip(x, here)])
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
  return [r.reshape((-1,) + x.shape[-2:]) for r in results]


# The expected outputs.


def variables_of(case, layer, part):
  """The variables of one part, and their shapes."""
  return table.VARIANTS[part].variables(layer.part_settings(part), table.Sizes(
      case.d_model, layer.get("num_heads"), layer.get("key_value_size"),
      case.sees_later))


def scoped(case, layer):
  """For each part, a dict from its variables' names to their names in the layer.

  Parts with a name in common have scopes. Only `q` is shared, if D's parameter says so.
  """
  parts = [variables_of(case, layer, part) for part in layer.parts]
  count = collections.Counter(name for part in parts for name in part)
  shared = "q" if any(
      layer.part_settings(part).get("share_query") for part in layer.parts) else None
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
  sizes = {"v": [case.d_model, width], "o": [width, case.d_model]}
  for part, names in zip(layer.parts, scoped(case, layer)):
    own = variables_of(case, layer, part)
    sizes.update({names[name]: own[name] for name in own})
  weights = layer.get("Mixture.weights", "per_head")
  if len(layer.parts) > 1 and weights != "sum":
    sizes["alpha"] = [heads] * (weights == "per_head") + [len(layer.parts)]
  if layer.get("relative_attention_type"):
    sizes["relative_attention_bias"] = [
        heads, layer.get("relative_attention_num_buckets")]
  return sizes


def frozen(case):
  """The names of the variables that are not trained: Fix's tables."""
  return {f"{i}/{names['R']}" for i, layer in enumerate(case.layers)
          if "Fix" in layer.parts
          for part, names in zip(layer.parts, scoped(case, layer)) if part == "Fix"}


def formulas(case, values, x):
  """The outputs of all layers by the formulas, each [batch, length, d_model]."""
  results, shared_bias = [], {}
  for i, layer in enumerate(case.layers):
    p = {name[2:]: value for name, value in values.items() if name[0] == str(i)}
    if layer.get("relative_attention_type") == "bias_shared":
      # The first layer of the stack with this number of heads holds the shared bias.
      p["relative_attention_bias"] = shared_bias.setdefault(
          layer.get("num_heads"), p.get("relative_attention_bias"))
    assert layer.is_whole or shapes(case, layer) == {
        name: list(v.shape) for name, v in p.items()}
    results.append(formula(case, layer, p, x.astype(np.float64)))
  return results


def formula(case, layer, p, x):
  """The output of a layer by the formulas: [batch, length, d_model]."""
  heads, bias = layer.get("num_heads"), 0.0
  if layer.get("relative_attention_type"):
    bias = reference.relative_bias(
        p["relative_attention_bias"], case.length, not case.sees_later)
  if layer.is_whole:
    compute, _ = whole_layers.LAYERS[layer.notation]
    return compute(p, whole_layers.Call(
        x, case.segments, case.visible, case.decoder,
        layer.part_settings(layer.notation), bias))
  logits = [table.VARIANTS[part].logits(
      {own: p[name] for own, name in names.items()}, table.Call(
          x, case.segments, heads, case.decoder, layer.part_settings(part)))
            for part, names in zip(layer.parts, scoped(case, layer))]
  alpha = np.ones([heads, len(logits)])
  if "alpha" in p:
    alpha *= reference.softmax(p["alpha"])
  logits = table.together(logits, layer.get("softmax"))
  total = np.einsum("hp,pbhij->bhij", alpha, logits) + bias
  return reference.output(
      total, p, x, case.visible, heads, use_softmax=layer.get("softmax"))
