"""Universal Transformers, by Mesh TensorFlow's UTLayerStack, with our layers."""

import gin
from mesh_tensorflow.transformer import universal_transformer
from support import models
from support.decoding import EOS
from support.decoding import parse
import synthesizer_mtf

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


def test_layers_that_share_a_projection_share_it_between_steps():
  models.parse_gin([FILE], models.TINY + [
      "encoder/synthesizer_stack.attention = 'Linformer'",
      "Linformer.share_layers = True"])
  m = models.Model()
  with m.tf_graph.as_default():
    m.model.call_simple(m.ids(INPUTS), m.ids(TARGETS), True, mode="train")
  names = [v.name for v in m.graph.all_variables if v.name.endswith("/E")]
  assert names == ["encoder/block_000/layer_000/Linformer/E"]
