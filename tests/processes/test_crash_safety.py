"""The launcher is killed at random moments, and started again.

Each restart continues from the newest checkpoint that was complete when the kill
struck. The test finds it by reading all checkpoints to the last byte.

  CRASH_KILLS=20 CRASH_SEED=0 python -m pytest -s tests/processes/test_crash_safety.py

kills it more often, and prints each kill.
"""

import math
import os
import random
import time

import pytest
from support import checkpoint_files
from support import crashes
from support import processes

KILLS = int(os.environ.get("CRASH_KILLS", 2))
SEED = int(os.environ.get("CRASH_SEED", 0))


def strike(training, moments):
  """Kills a training, at a step or during a save; returns the chosen moment."""
  aim = moments.choice(("step", "save", "first save"))
  if aim != "first save":  # A restart saves before its first step.
    training.wait_for_step()
  if aim != "step":
    training.wait_for_save()
  time.sleep(moments.uniform(0, 2 if aim == "step" else 0.15))
  training.kill()
  return aim


@pytest.fixture(scope="module")
def trainings(tmp_path_factory, sentencepiece_model):
  """The trainings in one folder, each with the step of the checkpoint before it.

  The test kills all of them except the last.
  """
  folder, moments = tmp_path_factory.mktemp("crash"), random.Random(SEED)
  newest, found = 0, []
  for kill in range(KILLS):
    training = crashes.Training(folder, str(kill), 10_000, sentencepiece_model)
    found.append((newest, training))
    aim = strike(training, moments)
    newest = crashes.newest(training.model_dir)
    print(f"kill {kill + 1}, {aim}: last step {max(training.losses(), default=None)}, "
          f"newest checkpoint {newest}, partial {crashes.partial(training.model_dir)}")
  last = crashes.Training(folder, str(KILLS), newest + 10, sentencepiece_model)
  assert last.wait() == 0, last.log.read_text()[-3000:]
  return [*found, (newest, last)]


def test_killed_training_resumes_from_the_newest_complete_checkpoint(trainings):
  for newest, training in trainings:
    losses = training.losses()
    assert training.restored() == newest, training.log
    assert all(map(math.isfinite, losses.values())), training.log
    # The trainer prints the step while the step may already be adding 1 to it.
    assert not losses or min(losses) - newest in (0, 1), training.log
  assert "Loss for final step" in training.log.read_text()


def test_another_variant_in_the_directory_is_refused(trainings):
  _, training = trainings[-1]
  model_dir = training.model_dir
  before = checkpoint_files.contents(model_dir)
  done = processes.run(
      [f"--model_dir={model_dir}",
       f"--gin_file={model_dir}/operative_config.gin",
       "--gin_param=synthesizer_stack.attention = 'V'",
       "--gin_param=utils.run.train_steps = 10000"], model_dir.parent)
  assert done.returncode == 1
  sentence = done.stderr.strip().splitlines()[-1]
  assert "is of another model: it also has" in sentence
  assert "SyntheticAttention/R" in sentence
  assert "Traceback" not in done.stderr
  assert checkpoint_files.contents(model_dir) == before
