"""Each row of the table of values names what exists, and refuses what it must."""

import fnmatch
import inspect
import re

import gin
import pytest
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.command import arguments
from synthesizer_mtf.trainer.command import value_checks

# Wrong values of gin, and the parameters that cannot have them: each border of a row.
WRONG = [
    (["'x'"], """utils.run.autostack utils.run.skip_seen_data
        AdafactorOptimizer.clipping_threshold AdafactorOptimizer.factored"""),
    (["'0.1'"], "utils.run.seen_data_init_step AdafactorOptimizer.beta1"),
    (["0"], """d_model utils.run.save_checkpoints_steps utils.run.train_steps
        Bitransformer.decode.beam_size Bitransformer.decode.max_decode_length"""),
    (["-1"], "num_layers utils.run.keep_checkpoint_max"),
    (["1.0", "-0.1"], "dropout_rate encoder/Unitransformer.label_smoothing"),
    (["1.5"], "t5.data.preprocessors.denoise.noise_density"),
    (["-0.5", "True", "1e999"], "constant_learning_rate.learning_rate"),
    (["None", "()", "('tokens', 64)", "('tokens_per_batch', 0)"],
     "utils.run.batch_size"),
    (["{'inputs': 16}", "[16, 12]", "{'inputs': 16, 'target': 12}",
      "{'inputs': -1, 'targets': 12}"], "utils.run.sequence_length"),
    (["'bitransformr'"], "utils.run.model_type"),
    (["'heads'"], "utils.run.layout_rules"),
    (["1", "[0]"], "utils.run.mesh_devices"), (["''"], "utils.run.init_checkpoint"),
    (["[1, 'x']", "-7"], "utils.run.eval_checkpoint_step"),
    (["[1, 2]", "0", "'all'"], "utils.run.export_checkpoint_step"),
    (["'float33'", "[1]"], "get_variable_dtype.activation_dtype"),
    (["['SelfAttention']"], "make_layer_stack.layers")]


def refused(parameter, check, *given):
  """Checks that a value is refused in a sentence with the parameter and a remedy."""
  with pytest.raises(checks.Error, match=r"; \w+") as error:
    check(*given)
  assert re.search(rf"`\S*{re.escape(parameter)}`", str(error.value)), error.value


def test_the_rows_name_parameters_of_gin_and_arguments_that_exist():
  known = {f".{selector}.{parameter}" for selector, configurable in
           gin_internals.registry().items() if callable(configurable.wrapped) and
           configurable.wrapped.__module__ != "builtins"
           for parameter in inspect.signature(configurable.wrapped).parameters}
  passed = {p.name for stock in arguments._STOCK.values() for p in stock} | {
      "attention", "seed", "warm_start"}
  for patterns, names, _ in value_checks.ROWS:
    assert all(pattern.startswith("%") or fnmatch.filter(known, f"*.{pattern}")
               for pattern in patterns.split()), patterns
    assert passed.issuperset(names.split()), names
  assert value_checks._REQUIRED <= passed


def test_every_row_refuses_a_value_by_its_parameters_name():
  texts = r"init_checkpoint|\w+_dir|tpu|split|extra_gin_bindings|output_file"
  for patterns, names, check in value_checks.ROWS:
    value = 3.5 if re.search(rf"\b({texts})\b", f"{patterns} {names}") else "("
    refused("some.parameter", check, "some.parameter", value)
    for name in names.split():
      refused(name, value_checks.read, name, value)


@pytest.mark.parametrize("values, parameters", WRONG)
def test_a_value_beyond_a_border_is_refused_once_gin_is_parsed(values, parameters):
  for parameter in parameters.split():
    for value in values:
      gin.clear_config()
      gin.parse_config(f"{parameter} = {value}")
      refused(parameter.rpartition(".")[2], value_checks.check,
              gin_internals.bindings())


def test_values_at_a_border_pass():
  gin_files.parse([], [
      "num_layers = 0", "DenseReluDense.dropout_rate = 0.0", "d_model = 1",
      "preprocessors.denoise.noise_density = 1.0", "utils.run.keep_checkpoint_max = 0",
      "utils.run.eval_checkpoint_step = -1", "utils.run.iterations_per_loop = '5m'"])
  for name in "tpu", "split", "warm_start", "checkpoint_steps":
    assert value_checks.read(name, "") is value_checks.read(name, None) is None
