"""Every recipe: its command, its mixture, and its model."""

import functools
import pathlib
import re

import gin
from mesh_tensorflow.transformer import utils
import pkg_resources
import pytest
import seqio
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.tools.base import recipes

FOLDER = pathlib.Path(gin_files.folder())
SHARED = ("common", "from_scratch", "pretraining", "finetuning", "eval",
          "perplexity_eval")
RECIPES = sorted(
    str(path.relative_to(FOLDER)) for path in FOLDER.glob("recipes/*/*.gin")
    if path.stem not in SHARED)
DATA_SETS = ("ag_news", "c4", "cnn_dailymail", "en_mix", "glue", "imdb_reviews",
             "lm1b", "personachat", "super_glue", "web_questions", "wmt14_ende",
             "wmt14_enfr", "xsum")
SMALL = ["d_model = 10", "d_ff = 14", "num_layers = 1", "num_heads = 2",
         "d_kv = 6", "SyntheticAttention.num_heads = 3",
         "SyntheticAttention.key_value_size = 4"]


def parse(command, *bindings):
  models.parse_gin(recipes.values(command, "gin_file"),
                   recipes.values(command, "gin_param") + list(bindings))


def test_every_data_set_has_a_recipe_of_both_scales():
  assert RECIPES == sorted(
      f"recipes/{scale}/{name}.gin" for scale in ("laptop", "pod")
      for name in DATA_SETS)


def test_commands_name_files_that_exist():
  theirs = pathlib.Path(pkg_resources.resource_filename("t5.models", "gin"))
  for name in [*RECIPES, "word_perplexity_eval.gin", "recipes/laptop/eval.gin",
               "recipes/laptop/perplexity_eval.gin"]:
    assert recipes.commands(name)
    for command in recipes.commands(name):
      files = recipes.values(command, "gin_file")
      assert name in files
      for file in files:
        assert (FOLDER / file).is_file() or (theirs / file).is_file() or (
            file == "DIR/operative_config.gin")


@pytest.mark.parametrize("name", RECIPES)
def test_both_commands_of_a_recipe_fit_a_registered_mixture(name):
  training, evaluation = recipes.commands(name)
  parse(training)
  mixture = gin.query_parameter("%MIXTURE_NAME")
  lengths = gin.query_parameter("utils.run.sequence_length")
  assert isinstance(gin.query_parameter("utils.run.train_steps"), int)
  assert set(lengths) == set(seqio.get_mixture_or_task(mixture).output_features)
  assert_table_length(name, max(lengths.values()))
  if name.startswith("recipes/pod/"):
    assert_batch_divides(lengths)
  parse(evaluation)
  assert gin.query_parameter("utils.run.mode") != "train"
  assert gin.query_parameter("utils.run.dataset_split") in (
      "validation", "test")
  assert gin.query_parameter("%MIXTURE_NAME") == mixture
  if "wmt14" in name:
    assert gin.query_parameter("Bitransformer.decode.max_decode_length") == (
        gin.query_parameter("utils.run.sequence_length")["targets"])


def assert_table_length(name, longest):
  """Checks that tables are as long as the sequences of a recipe, or of C4's."""
  length = gin.query_parameter("RandomLogits.max_length").scoped_configurable_fn()
  if "finetuning.gin" in (FOLDER / name).read_text() or name == "recipes/laptop/c4.gin":
    assert length >= longest  # As in C4's checkpoint.
  else:
    assert length == longest


def assert_batch_divides(lengths):
  """Checks that the batch divides among the cores of a pod."""
  assert gin.query_parameter("tpu_mesh_shape.tpu_topology") == "2x2"
  cores = 2 * 2 * 2  # Two to a chip.
  batch = utils.compute_batch_size(
      lengths, f"batch:{cores}", gin.query_parameter("utils.run.layout_rules"),
      gin.query_parameter("utils.run.batch_size"))
  assert batch and batch % cores == 0


def test_every_table_has_the_length_of_the_recipe_or_of_a_binding():
  for bindings, length in (([], 256), (["table_length = 600"], 600)):
    parse(recipes.commands("recipes/pod/wmt14_ende.gin")[0], *bindings)
    assert base.LengthTables.__subclasses__()
    for cls in functions.SYNTHESIZING_FUNCTIONS.values():
      if issubclass(cls, base.LengthTables):
        assert cls().max_length == length, cls


def model_bindings():
  """All of gin's bindings, except those of the data set and the training loop."""
  kept = []
  for section in gin.config_str().split("\n\n"):
    if not re.match(r"# (Parameters for (\w+/)?(run|mesh_\w+|get_vocabulary|"
                    r"tpu_mesh_shape|\w*learning_rate\w*):|Macros)", section):
      kept.append(section)
  return "\n".join(kept + [str(gin.query_parameter(f"%{name}"))
                           for name in ("dropout_rate", "num_layers")])


@functools.cache
def build_step(model_type, bindings):
  """Builds a training step, once for all recipes with the same model."""
  del bindings  # gin has parsed them, and they are the key of the cache.
  models.training_step(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("data_set", DATA_SETS)
def test_a_recipe_makes_a_training_step_at_a_small_size(data_set):
  for scale in ("laptop", "pod"):
    parse(recipes.commands(f"recipes/{scale}/{data_set}.gin")[0], *SMALL)
    build_step(gin.query_parameter("utils.run.model_type"), model_bindings())


@pytest.mark.parametrize("name, examples, passes", [
    ("ag_news", 120_000, 10.7), ("imdb_reviews", 25_000, 20.5)])
def test_a_file_says_how_many_passes_it_makes_through_a_small_data_set(
    name, examples, passes):
  parse(recipes.commands(f"recipes/pod/{name}.gin")[0])
  assert not gin.query_parameter("mesh_train_dataset_fn.pack")
  seen = gin.query_parameter("utils.run.train_steps") * gin.query_parameter(
      "utils.run.batch_size")[1]
  assert round(seen / examples, 1) == passes
  assert f"{passes} passes through the {examples:,}" in (
      FOLDER / f"recipes/pod/{name}.gin").read_text().replace("\n# ", " ")


def parameters_of_table_2(attention):
  """The number of trainable parameters of a row of Table 2, with few tokens."""
  command = [word.replace("r+v.gin", f"{attention}.gin")
             for word in recipes.commands("recipes/pod/wmt14_ende.gin")[0]]
  return models.count_parameters(
      functools.partial(parse, command), models.VOCABULARY, length=256)


@pytest.mark.slow
def test_rows_of_table_2_differ_from_the_transformer_as_in_the_paper():
  transformer = parameters_of_table_2("v")
  for attention, millions in (("r", 0.0), ("r+v", 6.3), ("fr", -5.9), ("fix", -6.3)):
    more = parameters_of_table_2(attention) - transformer
    assert round(more / 1e6, 1) == millions
