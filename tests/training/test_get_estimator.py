"""Our `get_estimator` builds the same as Mesh TensorFlow's, and more."""

import inspect

from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import utils
from support import models
from synthesizer_mtf.trainer.model import estimators
from synthesizer_mtf.trainer.model import get_estimator

STOCK = inspect.unwrap(utils.get_estimator, stop=lambda f: not hasattr(
    f, "_synthesizer_mtf_patches"))


def test_it_wraps_mesh_tensorflows_function_once_and_takes_its_arguments():
  assert utils.get_estimator is not STOCK
  assert utils.get_estimator.__wrapped__ is STOCK
  get_estimator.apply()
  assert utils.get_estimator.__wrapped__ is STOCK
  ours = inspect.signature(get_estimator.get_estimator).parameters
  passed_on = inspect.signature(utils.tpu_estimator_model_fn).parameters
  assert set(inspect.signature(STOCK).parameters) <= {*ours, *passed_on}


def test_the_configuration_is_mesh_tensorflows(tmp_path):
  models.parse_gin(["models/bi_v1.gin"], [
      *models.TINY, "synthesizer_stack.attention = 'R+V'",
      "utils.get_variable_dtype.activation_dtype = 'float32'"])
  arguments = models.estimator_arguments(tmp_path)
  ours, stock = utils.get_estimator(**arguments), STOCK(**arguments)
  assert isinstance(ours, estimators.CarefulEstimator)
  values, expected = vars(ours.config), vars(stock.config)
  assert values.keys() == expected.keys()
  for name, value in expected.items():
    if name not in ("_cluster_spec", "_session_config"):
      assert values[name] == value, name
  assert str(values["_session_config"]) == str(expected["_session_config"])
  assert ours.params == stock.params
  # Whose slots checkpoints may have.
  assert ours.optimizer is optimize.AdafactorOptimizer
