"""The model has the attention that gin names, however gin was filled."""

import functools
import pathlib

from absl.testing import flagsaver
import gin
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
import pytest
from support import models
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf.t5 import stack

CHOICE = "synthesizer_stack.attention = 'R+V'"
# Lines from operative_config.gin of a stock model, and of one of ours.
STOCK = ["encoder/transformer.make_layer_stack.block_scope = True",
         "encoder/transformer.make_layer_stack.num_layers = %num_layers"]
OURS = ["encoder/transformer.make_layer_stack.layer_stack_cls = "
        "@synthesizer_mtf.synthesizer_stack",
        "encoder/synthesizer_stack.attention = 'R+V'",
        "decoder/synthesizer_stack.attention = 'R+V'"]


def bind_stock():
  """Binds a stock model in gin, without finalizing."""
  gin.clear_config()
  gin_files.add_search_path()
  defaults = pathlib.Path(transformer.__file__).parent / "gin" / "defaults.gin"
  gin.parse_config_files_and_bindings(
      [str(defaults), "models/laptop.gin"], models.TINY, finalize_config=False)


def recorded(folder, lines):
  path = folder / "operative_config.gin"
  path.write_text("\n".join(lines) + "\n")
  return str(path)


def bind_when_finalized():
  gin.finalize()
  with gin.unlock_config():
    gin.bind_parameter("synthesizer_stack.attention", "R+V")


WAYS = {
    "parse_config": lambda folder: gin.parse_config([CHOICE]),
    "a file": lambda folder: gin.parse_config_file(recorded(folder, [CHOICE])),
    "bind_parameter": lambda folder: gin.bind_parameter(
        "synthesizer_stack.attention", "R+V"),
    "bind_parameter when finalized": lambda folder: bind_when_finalized(),
    "a macro": lambda folder: gin.parse_config(
        ["mine = 'R+V'", "synthesizer_stack.attention = %mine"]),
    "a file of the package": lambda folder: gin.parse_config_file("attention/r+v.gin"),
    "before a stock operative configuration": lambda folder: gin.parse_config(
        [CHOICE, *STOCK]),
    "an operative configuration of ours": lambda folder: gin.parse_config(OURS),
    "both scopes": lambda folder: gin.parse_config(OURS[1:])}


def names(part):
  return [type(layer).__name__ for layer in part.layer_stack.layers]


def notations(part):
  return [[type(s).__name__ for s in layer.mixture.synthesizers]
          for layer in part.layer_stack.layers
          if isinstance(layer, synthesizer_mtf.SyntheticAttention)]


@pytest.mark.parametrize("way", WAYS)
def test_the_choice_holds_and_other_layers_and_names_stay(way, tmp_path):
  for finalize in (False, True):
    bind_stock()
    WAYS[way](tmp_path)
    if finalize and not gin.config_is_locked():
      gin.finalize()
    model = models.build()
    assert names(model.encoder) == ["SyntheticAttention", "DenseReluDense"] * 2
    assert names(model.decoder) == [
        "SyntheticAttention", "EncDecAttention", "DenseReluDense"] * 2
    assert [layer.name for layer in model.decoder.layer_stack.layers] == [
        f"block_{b:03d}/layer_{n:03d}" for b in range(2) for n in range(3)]


def test_the_operative_configuration_makes_the_same_model_again():
  bind_stock()
  gin.parse_config([CHOICE])
  models.build()
  saved = gin.operative_config_str()
  gin.clear_config()
  gin.parse_config(saved)
  assert stack.choices() == {"encoder": "R+V", "decoder": "R+V"}
  assert "SyntheticAttention" in names(models.build().encoder)


def test_encoder_decoder_and_blocks_choose_for_themselves():
  bind_stock()
  gin.parse_config(["decoder/synthesizer_stack.attention = ['D', 'FR+V']"])
  model = models.build()
  assert names(model.encoder) == ["SelfAttention", "DenseReluDense"] * 2
  assert notations(model.decoder) == [
      ["DenseLogits"], ["FactorizedRandomLogits", "DotProductLogits"]]


def test_an_entry_can_be_a_layer_class():
  models.parse_gin([], [*models.TINY,
                        "encoder/synthesizer_stack.attention = ['R', @SelfAttention]"])
  ours, _, theirs, _ = models.build().encoder.layer_stack.layers
  assert isinstance(ours, synthesizer_mtf.SyntheticAttention)
  assert type(theirs) is transformer_layers.SelfAttention and theirs.num_heads == 2


def test_synthesizing_functions_can_be_composed_in_gin():
  models.parse_gin([], [
      *models.TINY, "synthesizer_stack.attention = @SyntheticAttention",
      "SyntheticAttention.synthesizers = [@RandomLogits(), @DotProductLogits()]",
      "RandomLogits.max_length = 16"])
  encoder = models.build().encoder
  assert notations(encoder) == [["RandomLogits", "DotProductLogits"]] * 2
  assert encoder.layer_stack.layers[0].mixture.synthesizers[0].max_length == 16


@pytest.mark.parametrize("bindings, sizes", [
    (["dropout_rate = 0.25"], (2, 6, 0.25)),
    (["encoder/SyntheticAttention.num_heads = 5",
      "SyntheticAttention.key_value_size = 3",
      "SyntheticAttention.dropout_rate = 0.5"], (5, 3, 0.5))])
def test_sizes_come_from_the_macros_of_t5_unless_told_otherwise(bindings, sizes):
  models.parse_gin([], [*models.TINY, CHOICE, *bindings])
  chosen = models.build().encoder.layer_stack.layers[0].heads
  assert (chosen.num_heads, chosen.key_value_size, chosen.dropout_rate) == sizes


@pytest.mark.parametrize("binding", ["", "synthesizer_stack.attention = None"])
def test_without_a_choice_the_model_and_its_configuration_are_stock(binding):
  bind_stock()
  gin.parse_config(binding)
  assert names(models.build().decoder) == [
      "SelfAttention", "EncDecAttention", "DenseReluDense"] * 2
  assert "synthesizer_stack" not in gin.operative_config_str()


def test_a_second_application_changes_nothing():
  before = transformer.make_layer_stack
  stack.apply()
  assert transformer.make_layer_stack is before


def test_another_class_of_stacks_is_kept_and_may_not_hide_the_choice():
  models.parse_gin([], [
      *models.TINY, CHOICE,
      "synthesizer_stack.layer_stack_cls = @ReversibleLayerStack"])
  encoder = models.build().encoder
  assert type(encoder.layer_stack) is transformer.ReversibleLayerStack
  assert notations(encoder)
  for scope in ("", "encoder/"):  # Also if gin is not finalized.
    bind_stock()
    gin.parse_config([CHOICE, f"{scope}make_layer_stack.layer_stack_cls = "
                      "@transformer.ReversibleLayerStack"])
    for build in (models.build, functools.partial(
        transformer.make_bitransformer, input_vocab_size=32, output_vocab_size=32)):
      with pytest.raises(ValueError, match="so that `synthesizer_stack.attention` "
                         "would not be used"):
        build()


def test_a_choice_that_no_stack_uses_is_an_error_or_named_in_the_log(log):
  bind_stock()
  gin.parse_config("encodr/synthesizer_stack.attention = 'R'")
  with pytest.raises(ValueError, match="`encodr/synthesizer_stack.attention = 'R'` "
                     "is bound, but no stack of the model uses it"):
    models.build()
  gin.parse_config("encoder/synthesizer_stack.attention = 'R'")
  models.build()
  assert ("`encodr/synthesizer_stack.attention = 'R'` is used by no stack: the model "
          "has none in this scope, only in 'encoder'.") in log.text
  assert "`encoder/" not in log.text
  bind_stock()
  gin.parse_config([*OURS, "synthesizer_stack.attention = 'D'"])
  models.build()
  assert ("`synthesizer_stack.attention = 'D'` is used by no stack: "
          "`encoder/synthesizer_stack.attention = 'R+V'`") in log.text


# From gin files and bindings after an operative_config.gin of R+V to the attentions of
# the encoder and of the decoder.
AFTER = [
    (["attention/d.gin"], [], "D", "D"),
    ([], ["synthesizer_stack.attention = 'D'"], "D", "D"),
    ([], ["include 'attention/d.gin'"], "D", "D"),
    ([], ["synthesizer_stack.attention = None"], None, None),
    (["attention/d.gin"], ["decoder/synthesizer_stack.attention = 'R'"], "D", "R"),
    (["attention/pattern.gin"], [], "Pattern", "R+V"),
    ([], ["nobody/synthesizer_stack.attention = 'D'"], "R+V", "R+V"),
    (["dataset.gin"], [], "R+V", "R+V")]


@pytest.mark.parametrize("by_flags", [False, True])
def test_a_choice_after_an_operative_configuration_holds(
    by_flags, tmp_path, parsed_flags):
  for after, bindings, encoder, decoder in AFTER:
    gin.clear_config()
    files = ["models/laptop.gin", recorded(tmp_path, OURS), *after]
    if by_flags:  # As T5's own command, which knows nothing of this package.
      with flagsaver.flagsaver(gin_file=files, gin_param=bindings):
        gin_files.add_search_path()
        gin.parse_config_files_and_bindings(files, bindings)
    else:
      gin_files.parse(files, bindings)
    chosen = stack.bound()
    assert (chosen["encoder"], chosen["decoder"]) == (encoder, decoder), after


def test_a_choice_before_an_operative_configuration_gives_way(tmp_path):
  ours = recorded(tmp_path, OURS)
  gin_files.parse(["models/laptop.gin", "attention/d.gin", ours])
  assert stack.choices() == {"": "D", "encoder": "R+V", "decoder": "R+V"}
  other = tmp_path / "mine.gin"  # Scopes of any other file win, as in gin.
  pathlib.Path(ours).rename(other)
  gin.clear_config()
  gin_files.parse([str(other), "attention/d.gin"])
  assert stack.choices() == {"": "D", "encoder": "R+V", "decoder": "R+V"}


def test_parameters_after_an_operative_configuration_hold(tmp_path, log):
  lines = [f"{part}/{parameter}" for part in ("encoder", "decoder") for parameter in (
      "RandomLogits.max_length = 32", "DenseReluDense.activation = 'relu'")]
  gin_files.parse(
      [recorded(tmp_path, [*OURS, *lines])],
      ["RandomLogits.max_length = 64", "DenseReluDense.activation = 'gelu'"])
  assert gin.query_parameter("encoder/RandomLogits.max_length") == 64
  assert gin.query_parameter("encoder/DenseReluDense.activation") == "gelu"
  assert ("`decoder/synthesizer_mtf.RandomLogits.max_length` is 64, not 32 as in "
          "operative_config.gin.") in log.text
