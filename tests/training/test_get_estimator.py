"""Our `get_estimator` builds the same as Mesh TensorFlow's, and more."""

import inspect
import types

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import utils
import pytest
from support import models
from synthesizer_mtf.trainer import estimators
from synthesizer_mtf.trainer import get_estimator

STOCK = inspect.unwrap(utils.get_estimator, stop=lambda f: not hasattr(
    f, "_synthesizer_mtf_patches"))


def arguments(folder, **others):
  return {
      "model_type": "bitransformer",
      "vocabulary": types.SimpleNamespace(vocab_size=models.VOCABULARY),
      "mesh_shape": mtf.convert_to_shape(""),
      "layout_rules": mtf.convert_to_layout_rules(""), "model_dir": str(folder),
      "batch_size": 3, "sequence_length": {"inputs": 5, "targets": 7},
      "autostack": True, "learning_rate_schedule": 0.1, "keep_checkpoint_max": 11,
      "save_checkpoints_steps": 13, "optimizer": optimize.AdafactorOptimizer,
      "predict_fn": None, "variable_filter": None, "ensemble_inputs": None,
      "use_tpu": None, "tpu_job_name": "job", "iterations_per_loop": 17,
      "cluster": None, **others}


def parse(*bindings):
  models.parse_gin(["models/bi_v1.gin"], [*models.TINY, *bindings])


def test_it_wraps_mesh_tensorflows_function_once_and_takes_its_arguments():
  assert utils.get_estimator is not STOCK
  assert utils.get_estimator.__wrapped__ is STOCK
  get_estimator.apply()
  assert utils.get_estimator.__wrapped__ is STOCK
  ours = inspect.signature(get_estimator.get_estimator).parameters
  passed_on = inspect.signature(utils.tpu_estimator_model_fn).parameters
  assert set(inspect.signature(STOCK).parameters) <= {*ours, *passed_on}


def test_the_configuration_is_mesh_tensorflows(tmp_path):
  parse("synthesizer_stack.attention = 'R+V'",
        "utils.get_variable_dtype.activation_dtype = 'float32'")
  ours, stock = (make(**arguments(tmp_path)) for make in (utils.get_estimator, STOCK))
  assert isinstance(ours, estimators.CarefulEstimator)
  found, expected = vars(ours.config), vars(stock.config)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    if name not in ("_cluster_spec", "_session_config"):
      assert found[name] == value, name
  assert str(found["_session_config"]) == str(expected["_session_config"])
  assert ours.params == stock.params
  # Whose slots checkpoints may have.
  assert ours.optimizer is optimize.AdafactorOptimizer


def test_an_attention_that_no_stack_has_is_an_error(tmp_path):
  parse("encodr/synthesizer_stack.attention = 'R'")
  with pytest.raises(ValueError, match="`encodr/synthesizer_stack.attention = 'R'` "
                     "is bound, but no stack of the model uses it"):
    utils.get_estimator(**arguments(tmp_path))
