"""Which parts of a model fast/ computes: by who starts it, and by gin's switches."""

import gin
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import transformer
import pytest
from support import models
from synthesizer_mtf.fast import adafactor
from synthesizer_mtf.fast import models as fast_models
from synthesizer_mtf.fast import switch
from synthesizer_mtf.trainer.command import arguments

LAYERS = ["cross-attention", "feed-forward layers", "norms"]
ALL = [*LAYERS, "embeddings and losses", "decoding"]
SWITCHES = {
    "synthesizer_stack.fast_cross_attention": "cross-attention",
    "synthesizer_stack.fast_feed_forward": "feed-forward layers",
    "synthesizer_stack.fast_norm": "norms",
    "synthesizer_vocabulary.fast": "embeddings and losses",
    "synthesizer_decoding.fast": "decoding"}
STOCK, OURS = "None", "'R+V'"


def parts(attention, *bindings, model_type="bitransformer"):
  models.parse_gin([], [
      *models.TINY, f"synthesizer_stack.attention = {attention}", *bindings])
  return fast_models.parts(models.build(model_type))


def made():
  return type(adafactor.fast(optimize.AdafactorOptimizer)(learning_rate=0.1))


def test_our_command_and_mtf_model_compute_every_attention_fast():
  def train(model=None, given=None):
    assert parts(STOCK) == ALL
    assert made() is adafactor.FastAdafactor
    assert parts(OURS) == ["attention", *ALL]
    return given

  with switch.started():
    train()
  assert arguments.checked(train)(None, "synth_text_pairs", steps=3) == {
      "mixture_or_task_name": "synth_text_pairs", "steps": 3}


def test_t5s_own_command_computes_a_stock_model_with_mesh_alone():
  assert parts(STOCK) == []
  assert made() is optimize.AdafactorOptimizer
  stack = models.build().decoder.layer_stack
  assert type(stack) is transformer.LayerStack
  assert {type(layer).__module__ for layer in stack.layers} == {
      "mesh_tensorflow.transformer.transformer_layers"}
  assert parts(OURS) == ["attention", *ALL]
  assert parts(STOCK, "synthesizer_fast.enabled = True") == ALL
  assert made() is adafactor.FastAdafactor


@pytest.mark.parametrize("attention", [STOCK, OURS])
def test_each_switch_leaves_its_part_to_mesh_whatever_the_attention(attention):
  own = ["attention"] if attention == OURS else []
  with switch.started():
    for parameter, part in SWITCHES.items():
      assert parts(attention, f"{parameter} = False") == own + [
          name for name in ALL if name != part], parameter
    assert parts(attention, "decoder/synthesizer_stack.fast_norm = False",
                 "encoder/synthesizer_stack.fast_norm = False") == own + [
                     name for name in ALL if name != "norms"]
    assert parts(attention, "synthesizer_optimizer.fast = False") == own + ALL
    assert made() is optimize.AdafactorOptimizer


def test_the_one_switch_leaves_everything_to_mesh_and_to_plain_attention():
  with switch.started():
    assert parts(STOCK, "synthesizer_fast.enabled = False") == []
    assert parts(OURS, "synthesizer_fast.enabled = False") == []
    assert made() is optimize.AdafactorOptimizer
  layers = models.build().encoder.layer_stack.layers
  assert [type(layer).__module__.partition(".")[0] for layer in layers] == [
      "synthesizer_mtf", "mesh_tensorflow"] * 2


def test_several_answers_are_decoded_by_our_loops_whatever_is_fast():
  for fast in "synthesizer_fast.enabled = False", "synthesizer_decoding.fast = False":
    assert "decoding" in parts(STOCK, fast, "synthesizer_answers.number = 2")


def test_stacks_of_other_classes_keep_their_layers_and_known_ones_do_not():
  with switch.started():
    assert parts(OURS, "include 'stacks/universal.gin'") == [
        name for name in ["attention", *ALL] if name != "norms"]
    own = type("OwnStack", (transformer.LayerStack,), {})
    with gin.unlock_config():
      gin.bind_parameter(
          "synthesizer_stack.layer_stack_cls", gin.external_configurable(
              own, "own_stack", module="test_what_is_fast"))
    assert not set(fast_models.parts(models.build())) & set(LAYERS)
