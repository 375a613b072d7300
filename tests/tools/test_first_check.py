"""All models of a table or study are built before the first one is trained."""

import pathlib

import gin
import pytest
from support import models
from synthesizer_mtf.tools.reproduction import first_check
from synthesizer_mtf.tools.runs import pipeline


def stage(attention, *params, seed=1):
  words = ["dataset.gin", "models/laptop.gin", f"attention/{attention}.gin"]
  params = [*models.TINY, "utils.run.sequence_length = {'inputs': 16, 'targets': 12}",
            f"train_with_seed.seed = {seed}", *params]
  return pipeline.Stage(
      attention, ["command", *(f"--gin_file={word}" for word in words),
                  *(f"--gin_param={param}" for param in params)],
      pathlib.Path("log"), lambda: False, range(3))


def test_a_later_row_is_refused_before_the_first_one_runs():
  with pytest.raises(ValueError, match="max_length` is 8 but the sequence has length"):
    first_check.check([stage("v"), stage("r", "RandomLogits.max_length = 8")])


def test_rows_that_fit_pass_and_leave_gin_as_it_was():
  gin.parse_config("nobody = 3")
  first_check.check([stage("v"), stage("r")])
  assert gin.query_parameter("%nobody") == 3
  with pytest.raises(ValueError):
    gin.query_parameter("utils.run.sequence_length")


def test_models_that_differ_by_a_seed_are_built_once(monkeypatch):
  built = []
  monkeypatch.setattr(first_check, "build", lambda: built.append(1))
  first_check.check([stage("v", seed=seed) for seed in (1, 2, 3)] + [stage("r")])
  assert len(built) == 2
