"""The commands that users type, in processes, on a tiny model and real text.

Other tests run the same in other ways: docs/test_t5_recipes.py decodes, scores and
exports, test_demo_command.py evaluates, and test_offline.py runs the installed script.
"""

import pytest
from support.launching import Launcher
from support.launching import STEPS
from support.launching import steps
import tensorflow.compat.v1 as tf


@pytest.fixture(scope="module")
def launcher(tmp_path_factory, sentencepiece_model):
  """A launcher whose model directory holds a model trained for 4 steps."""
  run = Launcher(tmp_path_factory.mktemp("launcher"), sentencepiece_model)
  done = run("attention_summaries.gin", bindings=[
      STEPS.format(4), "train_with_attention_summaries.every_steps = 2"])
  assert done.returncode == 0, done.stderr[-3000:]
  return run


def test_train_saves_checkpoints_and_resumes_from_the_last(launcher):
  assert 4 in steps(launcher)
  done = launcher(bindings=[STEPS.format(6)])
  assert done.returncode == 0, done.stderr[-3000:]
  assert 6 in steps(launcher)
  assert "Restoring parameters from" in done.stderr
  names = [name for name, _ in tf.train.list_variables(
      str(launcher.model_dir / "model.ckpt-6"))]
  for name in ("q", "k", "v", "o", "R", "alpha"):
    assert f"encoder/block_000/layer_000/SyntheticAttention/{name}" in names


def test_training_writes_summaries_of_the_attention(launcher):
  written = {}
  for path in launcher.model_dir.glob("events*"):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        written.setdefault(value.tag, []).append(event.step)
  for name in ("alpha/R", "entropy", "distance", "heads/image"):
    first, second = written[f"attention/decoder/block_000/{name}"][:2]
    assert second - first == 2


def test_a_bad_file_of_the_user_ends_in_one_sentence_with_its_line(launcher):
  """test_mistakes.py tests other bad inputs, in the process of the tests."""
  path = launcher.folder / "bad.tsv"
  path.write_text("one\teno\ntwo three\n")
  before = steps(launcher)
  done = launcher(bindings=[
      STEPS.format(50), f"synthesizer_mtf.tasks.pairs.train = '{path}'"])
  assert done.returncode == 1
  assert done.stderr.strip().splitlines()[-1].startswith(
      f"synthesizer_mesh_transformer: '{path}', line 2: 1 columns, but a pair")
  assert "traceback" not in done.stderr.lower()
  assert steps(launcher) == before
