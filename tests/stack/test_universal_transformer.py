"""Universal Transformers, by Mesh TensorFlow's UTLayerStack, with our layers."""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import universal_transformer
import pytest
from support import models
from support.decoding import EOS
from support.decoding import parse
from support.meshes import LAYOUT
from support.meshes import tpu_mesh
import synthesizer_mtf
import tensorflow.compat.v1 as tf

FILE = "stacks/universal.gin"
ACT = "UTLayerStack.recurrence_type = 'act'"
INPUTS = [[5, 9, 3, 7, 11, 2, EOS], [8, 4, EOS, 0, 0, 0, 0]]
TARGETS = [[4, 6, 2, 9, EOS], [3, EOS, 0, 0, 0]]


def parse_universal(notation, *bindings):
  parse(notation, "SyntheticAttention.relative_attention_type = 'bias_shared'",
        *bindings, files=[FILE])


def test_the_file_replaces_the_stack_and_keeps_the_choice_of_attention():
  parse_universal("R", "num_layers = 5")
  model = models.build()
  for stack in (model.encoder.layer_stack, model.decoder.layer_stack):
    assert isinstance(stack, universal_transformer.UTLayerStack)
    assert isinstance(stack.layers[0], synthesizer_mtf.SyntheticAttention)
    assert stack.num_rec_steps == 5
    assert {layer.name.split("/")[0] for layer in stack.layers} == {"block_000"}
  gin.clear_config()
  models.parse_gin([FILE], models.TINY)  # Without an attention T5 keeps its own.
  layers = models.build().encoder.layer_stack.layers
  assert [type(layer).__name__ for layer in layers] == ["SelfAttention",
                                                "DenseReluDense"]


def test_all_steps_share_one_block_and_only_the_steps_embedding_grows():
  shapes = []
  for steps in (1, 3):
    parse_universal("R+V", f"num_layers = {steps}", ACT)
    m = models.Model()
    with m.tf_graph.as_default():
      m.model.call_simple(m.ids(INPUTS), m.ids(TARGETS), True, mode="train")
    shapes.append({v.name: v.shape.to_integer_list
                   for v in m.graph.trainable_variables})
  assert set(shapes[0]) == set(shapes[1])
  differ = [name for name in shapes[0] if shapes[0][name] != shapes[1][name]]
  assert sorted(differ) == ["decoder/layer_embedding", "encoder/layer_embedding"]
  assert [shapes[1][name][0] for name in differ] == [3, 3]


def train(m, **kwargs):
  """The loss and updates of the variables; each must have a gradient."""
  tf.set_random_seed(1)
  _, loss = m.model.call_simple(
      m.ids(INPUTS), m.ids(TARGETS), True, mode="train", **kwargs)
  variables = m.graph.trainable_variables
  grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
  assert not [v.name for v, g in zip(variables, grads) if g is None]
  tf.train.get_or_create_global_step()
  return loss, optimize.SgdOptimizer(learning_rate=0.05).apply_grads(
      grads, variables)


def test_layers_that_share_a_projection_share_it_between_steps():
  models.parse_gin([FILE], models.TINY + [
      "encoder/synthesizer_stack.attention = 'Linformer'",
      "Linformer.share_layers = True"])
  m = models.Model()
  with m.tf_graph.as_default():
    train(m)
  names = [v.name for v in m.graph.all_variables if v.name.endswith("/E")]
  assert names == ["encoder/block_000/layer_000/Linformer/E"]


@pytest.mark.slow
def test_a_training_step_lowers_to_eight_cores():
  parse_universal("Pattern+V", "num_heads = 4", "d_ff = 12", "num_layers = 1",
                  "decoder/FixedPatterns.patterns = ['start']")
  m = models.Model(mesh_shape="batch:2,model:4", layout=LAYOUT)
  with m.tf_graph.as_default():
    train(m)
    lowering = mtf.Lowering(
        m.graph, {m.mesh: tpu_mesh("batch:2,model:4")}, autostack=False)
  assert any("einsum" in str(name) for name in lowering.counters)
