"""The choice of an attention per stack and block, by gin."""

from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from support import models
import synthesizer_mtf


def encoder_layers(*bindings, decoder=False):
  models.parse_gin([], models.TINY + list(bindings))
  model = models.build()
  return (model.decoder if decoder else model.encoder).layer_stack.layers


def notations(layers):
  return [[type(s).__name__ for s in layer.mixture.synthesizers]
          for layer in layers
          if isinstance(layer, synthesizer_mtf.SyntheticAttention)]


def sizes(layer):
  s = layer.sizes
  return s.num_heads, s.key_value_size, s.dropout_rate


def test_without_a_choice_t5_stays_as_it_is():
  layers = encoder_layers()
  assert [type(layer).__name__ for layer in layers] == [
      "SelfAttention", "DenseReluDense"] * 2


def test_one_notation_is_used_in_all_blocks_of_both_stacks():
  for decoder in (False, True):
    layers = encoder_layers('synthesizer_stack.attention = "R+V"',
                            decoder=decoder)
    assert notations(layers) == [["RandomLogits", "DotProductLogits"]] * 2


def test_encoder_and_decoder_choose_for_themselves():
  bindings = ['encoder/synthesizer_stack.attention = "R"',
              'decoder/synthesizer_stack.attention = ["D", "FR+V"]']
  assert notations(encoder_layers(*bindings)) == [["RandomLogits"]] * 2
  assert notations(encoder_layers(*bindings, decoder=True)) == [
      ["DenseLogits"], ["FactorizedRandomLogits", "DotProductLogits"]]


def test_other_layers_and_names_stay():
  layers = encoder_layers('synthesizer_stack.attention = "D"', decoder=True)
  assert [type(layer).__name__ for layer in layers] == [
      "SyntheticAttention", "EncDecAttention", "DenseReluDense"] * 2
  assert [layer.name for layer in layers] == [
      f"block_{b:03d}/layer_{n:03d}" for b in range(2) for n in range(3)]


def test_an_entry_can_be_a_layer_class():
  layers = encoder_layers(
      'encoder/synthesizer_stack.attention = ["R", @SelfAttention]')
  assert isinstance(layers[0], synthesizer_mtf.SyntheticAttention)
  assert isinstance(layers[2], transformer_layers.SelfAttention)
  assert layers[2].num_heads == 2


def test_synthesizing_functions_can_be_composed_in_gin():
  layers = encoder_layers(
      "synthesizer_stack.attention = @SyntheticAttention",
      "SyntheticAttention.synthesizers = [@RandomLogits(), @DotProductLogits()]",
      "RandomLogits.max_length = 16")
  assert notations(layers) == [["RandomLogits", "DotProductLogits"]] * 2
  assert layers[0].mixture.synthesizers[0].max_length == 16


def test_sizes_come_from_the_macros_of_t5_unless_told_otherwise():
  layer = encoder_layers('synthesizer_stack.attention = "R"',
                         "dropout_rate = 0.25")[0]
  assert sizes(layer) == (2, 6, 0.25)
  layer = encoder_layers('synthesizer_stack.attention = "R"',
                         "encoder/SyntheticAttention.num_heads = 5",
                         "SyntheticAttention.key_value_size = 3",
                         "SyntheticAttention.dropout_rate = 0.0")[0]
  assert sizes(layer) == (5, 3, 0.0)


def test_another_layer_stack_class_is_kept():
  models.parse_gin([], models.TINY + [
      'synthesizer_stack.attention = "R"',
      "synthesizer_stack.layer_stack_cls = @ReversibleLayerStack"])
  stack = models.build().encoder.layer_stack
  assert isinstance(stack, transformer.ReversibleLayerStack)
  assert notations(stack.layers)
