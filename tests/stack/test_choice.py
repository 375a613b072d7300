"""The model has the attention that gin names, however gin was filled."""

import functools
import logging as python_logging
import pathlib

from absl.testing import flagsaver
import gin
from mesh_tensorflow.transformer import transformer
import pytest
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf import stack

CHOICE = "synthesizer_stack.attention = 'R+V'"
# Lines from operative_config.gin of a stock model, and of one of ours.
STOCK = ["encoder/transformer.make_layer_stack.block_scope = True",
         "encoder/transformer.make_layer_stack.num_layers = %num_layers"]
OURS = ["encoder/transformer.make_layer_stack.layer_stack_cls = "
        "@synthesizer_mtf.synthesizer_stack",
        "encoder/synthesizer_stack.attention = 'R+V'",
        "decoder/synthesizer_stack.attention = 'R+V'"]


@pytest.fixture
def base():
  """A stock model in gin, which is not finalized."""
  gin_files.add_search_path()
  defaults = pathlib.Path(transformer.__file__).parent / "gin" / "defaults.gin"
  gin.parse_config_files_and_bindings(
      [str(defaults), "models/laptop.gin"], models.TINY, finalize_config=False)


def by_parse_config(folder):
  gin.parse_config([CHOICE])


def by_a_file(folder):
  (folder / "mine.gin").write_text(CHOICE + "\n")
  gin.parse_config_file(str(folder / "mine.gin"))


def by_bind_parameter(folder):
  gin.bind_parameter("synthesizer_stack.attention", "R+V")


def by_bind_parameter_when_finalized(folder):
  gin.finalize()
  with gin.unlock_config():
    gin.bind_parameter("synthesizer_stack.attention", "R+V")


def by_a_macro(folder):
  gin.parse_config(["mine = 'R+V'", "synthesizer_stack.attention = %mine"])


def by_a_file_of_the_package(folder):
  gin.parse_config_file("attention/r+v.gin")


def before_a_stock_operative_configuration(folder):
  gin.parse_config([CHOICE])
  gin.parse_config(STOCK)


def by_an_operative_configuration_of_ours(folder):
  gin.parse_config(OURS)


def in_both_scopes(folder):
  gin.parse_config(OURS[1:])


WAYS = [by_parse_config, by_a_file, by_bind_parameter,
        by_bind_parameter_when_finalized, by_a_macro, by_a_file_of_the_package,
        before_a_stock_operative_configuration,
        by_an_operative_configuration_of_ours, in_both_scopes]


def layers(layer_stack):
  return [type(layer).__name__ for layer in layer_stack._layers]


@pytest.mark.parametrize("finalize", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_choice_holds(base, way, finalize, tmp_path):
  way(tmp_path)
  if finalize and not gin.config_is_locked():
    gin.finalize()
  model = models.build()
  assert layers(model.encoder.layer_stack) == [
      "SyntheticAttention", "DenseReluDense"] * 2
  assert layers(model.decoder.layer_stack) == [
      "SyntheticAttention", "EncDecAttention", "DenseReluDense"] * 2


def test_the_operative_configuration_makes_the_same_model_again(base):
  gin.parse_config([CHOICE])
  models.build()
  saved = gin.operative_config_str()
  gin.clear_config()
  gin.parse_config(saved)
  assert stack.choices() == {"encoder": "R+V", "decoder": "R+V"}
  assert "SyntheticAttention" in layers(models.build().encoder.layer_stack)


def test_one_scope_alone(base):
  gin.parse_config(["decoder/synthesizer_stack.attention = 'R'"])
  model = models.build()
  assert "SelfAttention" in layers(model.encoder.layer_stack)
  assert "SyntheticAttention" in layers(model.decoder.layer_stack)


@pytest.mark.parametrize("bindings", [
    [], ["synthesizer_stack.attention = None"],
    ["synthesizer_stack.fast_cross_attention = True"]])
def test_without_a_choice_the_model_and_its_configuration_are_stock(base, bindings):
  gin.parse_config(bindings)
  model = models.build()
  assert layers(model.decoder.layer_stack) == [
      "SelfAttention", "EncDecAttention", "DenseReluDense"] * 2
  assert "synthesizer_stack" not in gin.operative_config_str()


def test_a_second_application_changes_nothing(base):
  before = transformer.make_layer_stack
  stack.apply()
  assert transformer.make_layer_stack is before


@pytest.mark.parametrize("scope", ["", "encoder/"])
def test_another_stack_is_an_error_without_finalize(base, scope):
  gin.parse_config([CHOICE, f"{scope}make_layer_stack.layer_stack_cls = "
                    "@transformer.ReversibleLayerStack"])
  for build in (models.build, functools.partial(
      transformer.make_bitransformer, input_vocab_size=32, output_vocab_size=32)):
    with pytest.raises(ValueError, match="so that `synthesizer_stack.attention` "
                       "would not be used"):
      build()


def test_a_scope_that_no_stack_has_is_an_error(base):
  gin.parse_config(["encodr/synthesizer_stack.attention = 'R'"])
  with pytest.raises(ValueError, match="`encodr/synthesizer_stack.attention = 'R'` "
                     "is bound, but no stack of the model uses it"):
    models.build()


def test_a_scope_that_no_stack_has_beside_one_that_has_is_named_in_the_log(
    base, caplog):
  gin.parse_config(["encoder/synthesizer_stack.attention = 'R'",
                    "decodr/synthesizer_stack.attention = 'R'"])
  python_logging.getLogger("absl").propagate = True
  with caplog.at_level("WARNING", logger="absl"):
    models.build()
  assert ("`decodr/synthesizer_stack.attention = 'R'` is used by no stack: the model "
          "has none in this scope, only in 'encoder'.") in caplog.text
  assert "`encoder/" not in caplog.text


def test_a_choice_that_scopes_hide_is_named_in_the_log(base, caplog):
  gin.parse_config([*OURS, "synthesizer_stack.attention = 'D'"])
  python_logging.getLogger("absl").propagate = True
  with caplog.at_level("WARNING", logger="absl"):
    models.build()
  assert ("`synthesizer_stack.attention = 'D'` is used by no stack: "
          "`encoder/synthesizer_stack.attention = 'R+V'`") in caplog.text


def recorded(folder, lines=OURS):
  path = folder / "operative_config.gin"
  path.write_text("\n".join(lines) + "\n")
  return str(path)


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


@pytest.mark.parametrize("files, bindings, encoder, decoder", AFTER)
@pytest.mark.parametrize("by_flags", [False, True])
def test_a_choice_after_an_operative_configuration_holds(
    files, bindings, encoder, decoder, by_flags, tmp_path, parsed_flags):
  files = ["models/laptop.gin", recorded(tmp_path), *files]
  if by_flags:  # As T5's own command, which knows nothing of this package.
    with flagsaver.flagsaver(gin_file=files, gin_param=bindings):
      gin_files.add_search_path()
      gin.parse_config_files_and_bindings(files, bindings)
  else:
    gin_files.parse(files, bindings)
  found = stack.bound()
  assert (found["encoder"], found["decoder"]) == (encoder, decoder)


def test_a_choice_before_an_operative_configuration_gives_way(tmp_path):
  gin_files.parse(["models/laptop.gin", "attention/d.gin", recorded(tmp_path)])
  assert stack.choices() == {"": "D", "encoder": "R+V", "decoder": "R+V"}


def test_scopes_of_other_files_win_as_in_gin(tmp_path):
  (tmp_path / "mine.gin").write_text("\n".join(OURS))
  gin_files.parse([str(tmp_path / "mine.gin"), "attention/d.gin"])
  assert stack.choices() == {"": "D", "encoder": "R+V", "decoder": "R+V"}


def test_parameters_of_ours_after_an_operative_configuration_hold(tmp_path, caplog):
  python_logging.getLogger("absl").propagate = True
  lines = [f"{part}/{each}" for part in ("encoder", "decoder") for each in (
      "RandomLogits.max_length = 32", "DenseReluDense.activation = 'relu'")]
  with caplog.at_level("INFO", logger="absl"):
    gin_files.parse(
        [recorded(tmp_path, [*OURS, *lines])],
        ["RandomLogits.max_length = 64", "DenseReluDense.activation = 'gelu'"])
  assert gin.query_parameter("encoder/RandomLogits.max_length") == 64
  # Bindings of other packages mean what they mean in T5's command.
  assert gin.query_parameter("encoder/DenseReluDense.activation") == "relu"
  assert ("`decoder/synthesizer_mtf.RandomLogits.max_length` is 64, not 32 as in "
          "operative_config.gin.") in caplog.text
