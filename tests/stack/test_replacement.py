"""The choice replaces Mesh TensorFlow's self-attention, each class known exactly."""

import importlib
import inspect
import pkgutil
import re

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import transformer as mesh_transformer
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import decoding
from support import models
from synthesizer_mtf.t5 import replacement
import tensorflow.compat.v1 as tf

CHOICE = "synthesizer_stack.attention = 'R'"
# What some of Mesh's classes require, and sizes that are small.
NEEDED = ["SelfAttentionFixup.num_blocks = 2",
          "ExpertsSelfAttention.num_experts = 2",
          "ExpertsSelfAttention.hidden_size = 7",
          "TransparentEncDecAttention.layers_per_encoder_module = 2",
          "TransparentEncDecAttention.layers_per_decoder_module = 3",
          "TransparentEncDecAttention.encoder_num_modules = 2",
          "TransparentEncDecAttention.decoder_num_modules = 2"]
SELF = sorted(cls.__name__ for cls in replacement.SELF_ATTENTION)
CROSS = [cls.__name__ for cls in replacement.CROSS_ATTENTION]


@gin.configurable
class ReadsTheEncoder(transformer_layers.SelfAttention):
  """A user's attention to the encoder, which does not say so by its base class."""

  def call(self, context, x, losses=None):
    return transformer_layers.enc_dec_attention(
        self, context.encoder_output, context, x, losses)


@gin.configurable
class OwnTalkingHeads(transformer_layers.TalkingHeadsSelfAttention):
  """A user's variant of another class of Mesh."""


@gin.configurable("OwnOfThatName")
class SelfAttention(transformer_layers.SelfAttention):
  """A user's class that has the name of the replaced one."""


gin.external_configurable(transformer_layers.SelfAttention, name="OtherName",
                          module="test_replacement")


def bind(encoder="SelfAttention", decoder="SelfAttention", cross="EncDecAttention",
         more=()):
  models.parse_gin([], [
      *models.TINY, *NEEDED, CHOICE,
      f"encoder/make_layer_stack.layers = [@{encoder}, @DenseReluDense]",
      f"decoder/make_layer_stack.layers = [@{decoder}, @{cross}, @DenseReluDense]",
      *more])


def names(stack):
  return [type(layer).__name__ for layer in stack.layer_stack.layers]


def without_gradient(m):
  """The names of variables that the loss does not depend on."""
  with m.tf_graph.as_default():
    _, loss = m.model.call_simple(
        m.ids([[5, 9, 3, 1]]), m.ids([[4, 6, 1]]), True, mode="train")
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
  return [v.name for v, grad in zip(variables, grads) if grad is None]


def attention_classes():
  """All classes of self-attention, or made from it, in Mesh's modules."""
  classes = set()
  for info in pkgutil.iter_modules(mesh_transformer.__path__):
    if not info.name.endswith("_test") and info.name not in ("main", "gin"):
      module = importlib.import_module(f"{mesh_transformer.__name__}.{info.name}")
      classes |= {value for value in vars(module).values() if isinstance(value, type)
                and issubclass(value, transformer_layers.SelfAttention)}
  return classes


def test_each_attention_of_mesh_is_known_as_what_it_is():
  known = {*replacement.SELF_ATTENTION, *replacement.CROSS_ATTENTION}
  assert attention_classes() == known
  for cls in known:
    reads = "encoder" in inspect.getsource(cls) and hasattr(
        cls, "_get_memory_antecedent")
    assert reads == (cls in replacement.CROSS_ATTENTION), cls


def test_self_attention_is_replaced_in_both_stacks(log):
  for name in [*SELF, "wide/SelfAttention", "OtherName"]:
    gin.clear_config()
    bind(encoder=name, decoder=name)
    model = models.build()
    assert names(model.encoder) == ["SyntheticAttention", "DenseReluDense"] * 2, name
    assert names(model.decoder) == [
        "SyntheticAttention", "EncDecAttention", "DenseReluDense"] * 2, name
  assert ("`decoder/synthesizer_stack.attention`: R, with 2 heads of 6, takes the "
          "place of TalkingHeadsSelfAttention in 2 layers.") in log.text


def test_attention_to_the_encoder_stays_and_the_decoder_sees_the_encoder():
  for name in CROSS:
    gin.clear_config()
    bind(cross=name)
    assert names(models.build().decoder) == [
        "SyntheticAttention", name, "DenseReluDense"] * 2
  gin.clear_config()
  # All in one block, but for Mesh's experts, which never look at the encoder.
  cross = [name for name in CROSS if "Experts" not in name]
  bind(cross=", @".join(cross), more=["num_layers = 1"])
  assert not without_gradient(models.Model())


def test_a_class_that_is_not_known_stays_and_the_log_names_it(log):
  for name, cls in {"ReadsTheEncoder": ReadsTheEncoder,
                    "OwnTalkingHeads": OwnTalkingHeads,
                    "OwnOfThatName": SelfAttention}.items():
    gin.clear_config()
    log.clear()
    bind(cross=name)
    replaced, kept, *_ = models.build().decoder.layer_stack.layers
    assert type(replaced).__name__ == "SyntheticAttention" and type(kept) is cls
    assert ("`decoder/synthesizer_stack.attention` leaves "
            f"{__name__}.{cls.__name__} as it is") in log.text
    assert "takes the place" not in log.text


def test_a_stack_of_unknown_attention_alone_is_an_error_with_its_name():
  bind(encoder="OwnTalkingHeads")
  with pytest.raises(ValueError, match="`encoder/synthesizer_stack.attention` is 'R' "
                     "but the stack has no SelfAttention to replace; name it in "
                     "`make_layer_stack.layers` in the place of "
                     f"{__name__}.OwnTalkingHeads."):
    models.build()


def test_self_attention_inside_of_another_layer_stays_and_the_log_says_so(log):
  for name in ("ParallelLayer", "DecoderAttentionLayer"):
    gin.clear_config()
    bind(cross=name, more=["DecoderAttentionLayer.base_num_heads = 2"])
    assert names(models.build().decoder)[:2] == ["SyntheticAttention", name]
    assert f"{name} as it is" in log.text


WIDE = "({'num_heads': 6}, @SelfAttention)"


def heads(layers):
  return [layer.heads.num_heads for layer in layers if hasattr(layer, "heads")]


# What chooses an attention, with 2 heads by T5's macro.
CHOICES = [
    [CHOICE],
    ["synthesizer_stack.attention = ['R', 'D+V', 'FR', 'Linformer']"],
    ["synthesizer_stack.attention = 'LightConv'"],  # Which has no heads in T5.
    ["synthesizer_stack.attention = @SyntheticAttention",
     "SyntheticAttention.synthesizers = [@DotProductLogits()]"],
    # The attention's own binding loses, as in Mesh.
    [CHOICE, "SyntheticAttention.num_heads = 2"]]


def test_arguments_of_a_layer_go_to_the_attention_in_its_place():
  for choice in CHOICES:
    gin.clear_config()
    models.parse_gin([], [
        *models.TINY, *(f"encoder/{line}" if "stack.attention" in line else line
                        for line in choice),
        f"encoder/make_layer_stack.layers = [{WIDE}, @DenseReluDense, @SelfAttention]"])
    layers = models.build().encoder.layer_stack.layers
    assert heads(layers) == [6, 2, 6, 2], choice
    assert [layer.name for layer in layers[:4]] == [
        "block_000/layer_000", "block_000/layer_001", "block_000/layer_002",
        "block_001/layer_000"]
  with gin.unlock_config():  # Names and arguments stand in any order, as in Mesh.
    gin.parse_config(
        "encoder/make_layer_stack.layers = "
        "[[@SelfAttention, {'num_heads': 3, 'key_value_size': 5}, 'mine']]")
  layer = models.build().encoder.layer_stack.layers[0]
  assert (layer.heads.num_heads, layer.heads.key_value_size) == (3, 5)
  assert layer.name == "block_000/mine"


def test_arguments_arrive_from_python_and_through_a_gin_reference():
  layer = transformer_layers.SelfAttention
  bind()
  with gin.config_scope("encoder"):
    for make in (
        lambda: transformer.make_layer_stack([({"num_heads": 6}, layer), layer]),
        lambda: transformer.make_layer_stack(layers=[({"num_heads": 6}, layer), layer],
                                             num_layers=2)):
      assert heads(make().layers) == [6, 2, 6, 2]
  with gin.unlock_config():
    gin.parse_config([
        f"encoder/make_layer_stack.layers = [{WIDE}, @SelfAttention]",
        "Unitransformer.layer_stack = @encoder/make_layer_stack()"])
  assert heads(gin.get_bindings("Unitransformer")["layer_stack"].layers) == [6, 2, 6, 2]


def test_arguments_that_the_attention_cannot_have_are_an_error():
  for given, why in {
      "{'shared_kv': True}": "'R' has no parameter `shared_kv`; it has dropout_rate",
      "{'num_heads': 0}": "`SyntheticAttention.num_heads` is 0 but must be"}.items():
    gin.clear_config()
    models.parse_gin([], [
        *models.TINY, CHOICE,
        f"encoder/make_layer_stack.layers = [({given}, @SelfAttention)]"])
    with pytest.raises(ValueError, match=re.escape(
        f"`encoder/make_layer_stack.layers` gives {given} to SelfAttention, and so to "
        f"the attention that takes its place: {why}") + ".*change the arguments there"):
      models.build()


@pytest.mark.slow
def test_t5s_shared_model_shares_self_attention_and_decodes_as_it_reads():
  inputs = [[5, 9, 3, 7, 11, 2, decoding.EOS], [8, 4, decoding.EOS, 0, 0, 0, 0]]
  decoding.parse("R+V", "num_layers = 1", files=["models/bi_v1_shared.gin"])
  m = models.Model()
  assert not without_gradient(m)
  scope = "decoder/block_000/self_attention"
  assert {v.name for v in m.graph.trainable_variables
          if v.name.startswith(scope)} == {f"{scope}/rms_norm/scale", *(
              f"{scope}/SyntheticAttention/{name}"
              for name in ("R", "q", "k", "v", "o", "alpha"))}
  assert not [v.name for v in m.graph.all_variables if "encoder/" in v.name]
  with m.tf_graph.as_default():
    with tf.variable_scope("", reuse=True):
      outputs = m.model.decode(m.ids(inputs), max_decode_length=6)
      logits, _ = m.model.call_simple(m.ids(inputs), outputs, False, mode="eval")
    (values,), _ = m.run(
        outputs, mtf.argmax(logits, logits.shape.dims[-1]), scale=1.0)
  decoding.check_greedy(*values)


def test_shared_layers_of_different_sizes_are_an_error():
  models.parse_gin(["models/bi_v1_shared.gin"], [
      *models.TINY, CHOICE, "num_layers = 1", "encoder/RandomLogits.max_length = 16",
      "decoder/RandomLogits.max_length = 8"])
  with pytest.raises(ValueError, match="two layers share the variable 'R' of "
                     "'decoder/block_000/self_attention/SyntheticAttention', but"):
    without_gradient(models.Model())


def test_what_gin_gives_to_t5s_attention_alone_is_named_in_the_log(log):
  for more in (
      [], ["SelfAttention.num_heads = 6", "SyntheticAttention.num_heads = 6"],
      ["SelfAttention.num_heads = 6", "SyntheticAttention.num_heads = 3"],
      ["num_heads = 6", "encoder/SyntheticAttention.dropout_rate = 0.5"]):
    gin.clear_config()
    bind(more=more)
    models.build()
  assert "synthesizer_stack.attention" not in log.text  # Nothing is lost.
  for binding, line in {
      "SelfAttention.num_heads = 6": "`SelfAttention.num_heads` is 6, but "
      "SyntheticAttention, which takes its place, has 2, from the macro `num_heads`; "
      "bind `SyntheticAttention.num_heads` as well.",
      "encoder/SelfAttention.dropout_rate = 0.5":
          "`SelfAttention.dropout_rate` is 0.5",
      "SelfAttention.num_memory_heads = 1": "`SelfAttention.num_memory_heads` is 1, "
      "which SyntheticAttention, which takes its place, does not have."}.items():
    gin.clear_config()
    bind(more=[binding])
    models.build()
    assert f"`encoder/synthesizer_stack.attention`: {line}" in log.text


@pytest.mark.slow
def test_a_stack_that_shortens_its_sequences_masks_what_is_left():
  models.parse_gin([], [
      *models.TINY, "encoder/synthesizer_stack.attention = 'R'",
      "import mesh_tensorflow.transformer.funnel_transformer",
      "encoder/synthesizer_stack.layer_stack_cls = @FunnelTransformerLayerStack",
      "make_bitransformer.bitransformer_cls = @BitransformerFunnel",
      "FunnelTransformerLayerStack.n_blocks = 3", "num_layers = 4",
      "decoder/make_layer_stack.num_layers = 1",
      "FunnelTransformerLayerStack.block_param_size = [1, 1, 2]",
      "FunnelTransformerLayerStack.block_repeat_size = [1, 1, 1]",
      "FunnelTransformerLayerStack.sublayers_initial = []",
      "FunnelTransformerLayerStack.sublayers_final = []",
      "FunnelTransformerLayerStack.sublayers_per_layer = [@sublayer_rms_norm, "
      "@sublayer_call_layer, @sublayer_residual]"])
  results = []
  for padding in 0, 8:
    m = models.Model()
    with m.tf_graph.as_default():
      logits, _ = m.model.call_simple(
          m.ids([[5, 9, 3, 7, 2, 8, 4, 1] + [0] * padding]), m.ids([[4, 6, 1]]), False,
          mode="eval")
      (values,), _ = m.run(logits, scale=0.5)
    results.append(values[0])
  np.testing.assert_allclose(*results, atol=1e-5)
