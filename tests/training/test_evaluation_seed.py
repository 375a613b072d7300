"""The random numbers of an evaluation are the same each time, by default."""

import gin
import numpy as np
import pytest
from synthesizer_mtf.training import seed
from t5.models import mesh_transformer

pytestmark = pytest.mark.usefixtures("tasks_to_read")
TASK, LENGTHS = "synth_c4_span_corruption", {"inputs": 32, "targets": 14}


def evaluated(**kwargs):
  """The inputs that an evaluation of C4 feeds to a model, in order."""
  found, = mesh_transformer.mesh_eval_dataset_fn(
      TASK, LENGTHS, "validation", **kwargs)
  rows = [row["inputs"] for row in found.dataset_fn().as_numpy_iterator()]
  assert len(rows) > 9
  return np.array(rows)


def test_each_evaluation_has_the_same_spans():
  gin.finalize()
  np.testing.assert_array_equal(evaluated(), evaluated())


def test_the_seed_can_also_be_bound_without_finalize():
  seed.bind_missing()
  np.testing.assert_array_equal(evaluated(), evaluated())


@pytest.mark.parametrize("value", [None, 7])
def test_a_seed_that_is_bound_wins(value):
  gin.parse_config(f"mesh_eval_dataset_fn.seed = {value}")
  gin.finalize()
  other = evaluated() if value is None else evaluated(seed=seed.EVALUATION)
  assert not np.array_equal(evaluated(), other)


@pytest.mark.parametrize("parameters, bound", [
    ({}, True), ({"shuffle_eval_examples": False}, True),
    ({"shuffle_eval_examples": True}, False), ({"seed": None}, False),
    ({"shuffle_eval_examples": True, "seed": 3}, False)])
def test_a_seed_is_bound_unless_gin_shuffles_or_binds_one(parameters, bound):
  selector = "t5.models.mesh_transformer.mesh_eval_dataset_fn"
  found = seed.bind_evaluation_seed({("", selector): parameters})
  assert found == ({f"{selector}.seed": seed.EVALUATION} if bound else None)
