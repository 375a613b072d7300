"""T5's norms train fast; what only looks like one of them stays Mesh TensorFlow's."""

import functools

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import universal_transformer
import numpy as np
import pytest
from support import models
from support.reference import check_same
from synthesizer_mtf.fast import norms
import tensorflow.compat.v1 as tf

_STOCK = transformer.sublayer_rms_norm
IDS = np.array([[5, 9, 3, 7, 2, 1, 0], [8, 4, 6, 1, 0, 0, 0]])


@gin.configurable("own_norm", module="test_sublayers")
def sublayer_rms_norm(x, layer_stack, context, **kwargs):
  """A user's norm: the name alone is T5's."""
  return _STOCK(x, layer_stack, context, **kwargs) * 2


@gin.configurable("wrapping_norm", module="test_sublayers")
@functools.wraps(_STOCK)
def wrapping_norm(x, layer_stack, context):
  """All its attributes are those of T5's norm."""
  return _STOCK(x * x, layer_stack, context)


@gin.configurable(module="test_sublayers")
def same_shape(x, layer_stack, context):
  """Makes the operations of T5's norm, with an r that is not the norm's."""
  del layer_stack
  d_model = context.model.model_dim
  scale = mtf.get_variable(context.mesh, "scale", mtf.Shape([d_model]),
                           initializer=tf.ones_initializer())
  mean = mtf.reduce_mean(mtf.square(x + 1), reduced_dim=d_model)
  return x * mtf.rsqrt(mean + 1e-6) * scale


@gin.configurable(module="test_sublayers")
class OwnStack(transformer.LayerStack):
  """Reads its lists in its own way."""

  def _call_sublayers(self, sublayers, x, context):
    for sublayer in sublayers:
      x = sublayer(x, self, context)
      if sublayer is _STOCK:
        x *= 3
    return x


def parse(*bindings):
  models.parse_gin([], [
      *models.TINY, "synthesizer_stack.attention = 'V'", *bindings])


def around(norm, last=None):
  return [
      f"LayerStack.sublayers_per_layer = [{norm}, @transformer.sublayer_call_layer, "
      "@transformer.sublayer_dropout, @transformer.sublayer_residual]",
      f"LayerStack.sublayers_final = [{last or norm}, @transformer.sublayer_dropout]"]


def fast_norms(*bindings, mode="train", tpu=False):
  """The number of fast norms in the graph of a step."""
  parse(*bindings)
  m = models.Model("lm", tpu=tpu)
  with m.tf_graph.as_default():
    ids = m.ids(IDS)
    _, loss = m.model.call_simple(
        ids, ids, True, mode=mode, sequence_id=mtf.minimum(ids, 1))
    mtf.gradients([loss], [v.outputs[0] for v in m.graph.trainable_variables])
  return sum(isinstance(op, norms.RmsNormGradOperation)
             for op in m.graph.operations)


def train(*bindings):
  """The loss and the gradients by name."""
  parse(*bindings)
  m = models.Model("lm")
  ids = m.ids(IDS)
  with m.tf_graph.as_default():
    segments = mtf.minimum(ids, 1)
  return m.loss_and_gradients(ids, ids, scale=0.4, sequence_id=segments)


# A norm before each of the 2 * 2 layers, and one after the stack.
ALL = 2 * 2 + 1


@pytest.mark.parametrize("bindings", [
    ["sublayer_rms_norm.epsilon = 0.1", "sublayer_rms_norm.name = 'layer_norm'"],
    ["LayerStack.dropout_rate = 0.0", "LayerStack.norm_epsilon = 1e-6"],
    ["synthesizer_stack.layer_stack_cls = @transformer.ReversibleLayerStack",
     "ReversibleLayerStack.recompute_grads = True",
     *[line.replace("LayerStack", "ReversibleLayerStack").replace(
         ", @transformer.sublayer_residual", "")
       for line in around("@transformer.sublayer_rms_norm")],
     "ReversibleLayerStack.sublayers_initial = [@transformer.sublayer_dropout]"],
    around("@transformer.sublayer_rms_norm, @transformer.sublayer_dropout"),
], ids=["parameters", "legacy", "reversible", "dropout before"])
def test_known_norms_train_fast_with_the_gradients_of_mesh(bindings):
  assert fast_norms(*bindings) == ALL
  stock = "synthesizer_stack.fast_norm = False"
  assert fast_norms(*bindings, stock) == 0
  check_same(train(*bindings), train(*bindings, stock))


@pytest.mark.parametrize("norm", [
    "@transformer.sublayer_rms_norm_subsampled", "@own_norm", "@wrapping_norm",
    "@same_shape", "@some/transformer.sublayer_rms_norm"])
def test_norms_that_only_look_like_it_stay(norm):
  assert not fast_norms(*around(norm))


def test_a_stack_of_the_users_own_gets_its_own_lists():
  assert not fast_norms(
      "synthesizer_stack.layer_stack_cls = @OwnStack",
      *[line.replace("LayerStack", "OwnStack") for line in
        around("@transformer.sublayer_rms_norm")],
      "OwnStack.sublayers_initial = [@transformer.sublayer_dropout]")


def test_stacks_without_lists_of_sublayers_stay():
  stack = universal_transformer.UTLayerStack.__new__(
      universal_transformer.UTLayerStack)
  assert norms.for_stack(stack) is stack


def test_a_replaced_norm_of_mesh_stays(monkeypatch):
  monkeypatch.setattr(transformer, "sublayer_rms_norm", sublayer_rms_norm)
  assert not fast_norms(
      "LayerStack.dropout_rate = 0.0", "LayerStack.norm_epsilon = 1e-6")


@pytest.mark.parametrize("options", [{"mode": "eval"}, {"tpu": True}], ids=str)
def test_evaluation_and_tpus_keep_the_norm_of_mesh(options):
  assert not fast_norms(**options)


def test_a_norm_and_the_call_after_it_become_one():
  norm, call = transformer.sublayer_rms_norm, transformer.sublayer_call_layer
  every = [norm, call, transformer.sublayer_residual]
  assert len(norms.for_list(every)) == 2
