"""The choice replaces Mesh TensorFlow's self-attention, each class known exactly."""

import importlib
import inspect
import logging as python_logging
import pkgutil

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import transformer as mesh_transformer
from mesh_tensorflow.transformer import transformer_layers
import pytest
from support import models
from synthesizer_mtf import replacement

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
  names = (f"@{name}" for name in (encoder, decoder, cross))
  encoder, decoder, cross = names
  models.parse_gin([], [
      *models.TINY, *NEEDED, CHOICE,
      f"encoder/make_layer_stack.layers = [{encoder}, @DenseReluDense]",
      f"decoder/make_layer_stack.layers = [{decoder}, {cross}, @DenseReluDense]",
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
  """All subclasses of self-attention in Mesh's modules."""
  for module in pkgutil.iter_modules(mesh_transformer.__path__):
    if not module.name.endswith("_test") and module.name not in ("main", "gin"):
      importlib.import_module(f"{mesh_transformer.__name__}.{module.name}")
  classes, found = [transformer_layers.SelfAttention], set()
  while classes:
    cls = classes.pop()
    found.add(cls)
    classes += [sub for sub in cls.__subclasses__()
                if sub.__module__.startswith("mesh_tensorflow.") and
                type(sub) is type]  # Not gin's wrapper of a class.
  return found


def test_each_attention_of_mesh_is_known_as_what_it_is():
  known = {*replacement.SELF_ATTENTION, *replacement.CROSS_ATTENTION}
  assert attention_classes() == known
  for cls in known:
    reads = "encoder" in inspect.getsource(cls) and hasattr(
        cls, "_get_memory_antecedent")
    assert reads == (cls in replacement.CROSS_ATTENTION), cls


@pytest.mark.parametrize("name", SELF)
def test_self_attention_is_replaced_in_both_stacks(name):
  bind(encoder=name, decoder=name)
  model = models.build()
  assert names(model.encoder) == ["SyntheticAttention", "DenseReluDense"] * 2
  assert names(model.decoder) == [
      "SyntheticAttention", "EncDecAttention", "DenseReluDense"] * 2


@pytest.mark.parametrize("name", CROSS)
def test_attention_to_the_encoder_stays_and_the_decoder_sees_the_encoder(name):
  bind(cross=name)
  m = models.Model()
  assert names(m.model.decoder) == [
      "SyntheticAttention", name, "DenseReluDense"] * 2
  if "Experts" not in name:  # Mesh's experts never look at the encoder.
    assert not without_gradient(m)


def test_t5s_model_with_talking_heads_keeps_its_attention_to_the_encoder(caplog):
  python_logging.getLogger("absl").propagate = True
  with caplog.at_level("INFO", logger="absl"):
    models.parse_gin(["models/t5.1.th.base.gin", "attention/r.gin"], [
        *models.TINY, "TalkingHeadsSelfAttention.key_size = 4",
        "TalkingHeadsSelfAttention.value_size = 4"])
    m = models.Model()
  assert names(m.model.decoder) == [
      "SyntheticAttention", "TalkingHeadsEncDecAttention", "DenseReluDense"] * 2
  assert not without_gradient(m)
  assert ("`decoder/synthesizer_stack.attention`: R, with 2 heads of 6, takes the "
          "place of TalkingHeadsSelfAttention in 2 layers.") in caplog.text


@pytest.mark.parametrize("name", ["ReadsTheEncoder", "OwnTalkingHeads",
                                  "OwnOfThatName"])
def test_a_class_that_is_not_known_stays_and_the_log_names_it(name, caplog):
  python_logging.getLogger("absl").propagate = True
  bind(cross=name)
  with caplog.at_level("INFO", logger="absl"):
    decoder = models.build().decoder.layer_stack.layers
  kept = type(decoder[1])
  assert kept.__module__ == __name__
  assert type(decoder[0]).__name__ == "SyntheticAttention"
  assert ("`decoder/synthesizer_stack.attention` leaves "
          f"{__name__}.{kept.__qualname__} as it is") in caplog.text
  assert "takes the place" not in caplog.text


def test_a_stack_of_unknown_attention_alone_is_an_error_with_its_name():
  bind(encoder="OwnTalkingHeads")
  with pytest.raises(ValueError, match="`encoder/synthesizer_stack.attention` is 'R' "
                     "but the stack has no SelfAttention to replace; name it in "
                     "`make_layer_stack.layers` in the place of "
                     f"{__name__}.OwnTalkingHeads."):
    models.build()


@pytest.mark.parametrize("name", ["wide/SelfAttention", "OtherName"])
def test_a_class_is_the_same_in_a_scope_and_by_another_name_in_gin(name):
  bind(encoder=name)
  assert names(models.build().encoder) == ["SyntheticAttention", "DenseReluDense"] * 2


@pytest.mark.parametrize("name", ["ParallelLayer", "DecoderAttentionLayer"])
def test_self_attention_inside_of_another_layer_stays_and_the_log_says_so(name, caplog):
  python_logging.getLogger("absl").propagate = True
  bind(cross=name, more=["DecoderAttentionLayer.base_num_heads = 2"])
  with caplog.at_level("INFO", logger="absl"):
    assert names(models.build().decoder)[:2] == ["SyntheticAttention", name]
  assert f"{name} as it is" in caplog.text
