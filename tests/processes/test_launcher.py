"""The commands that users type, in processes, on a tiny model and real text.

Other tests run the same in other ways: docs/test_t5_recipes.py decodes, scores and
exports, test_demo_command.py evaluates, test_crash_safety.py resumes, and
test_offline.py runs the installed script.
"""

from support.launching import Launcher
from support.launching import STEPS
from support.launching import steps
import tensorflow.compat.v1 as tf


def test_training_writes_summaries_of_the_attention(tmp_path, sentencepiece_model):
  launcher = Launcher(tmp_path, sentencepiece_model)
  done = launcher("attention_summaries.gin", bindings=[
      STEPS.format(4), "train_with_attention_summaries.every_steps = 2"])
  assert done.returncode == 0, done.stderr[-3000:]
  assert steps(launcher)[-1] == 4
  written = {}
  for path in launcher.model_dir.glob("events*"):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        written.setdefault(value.tag, []).append(event.step)
  for name in ("alpha/R", "entropy", "distance", "heads/image"):
    first, second = written[f"attention/decoder/block_000/{name}"][:2]
    assert second - first == 2


def test_a_bad_file_of_the_user_ends_in_one_sentence_with_its_line(
    tmp_path, sentencepiece_model):
  """test_mistakes.py tests other bad inputs, in the process of the tests."""
  launcher, path = Launcher(tmp_path, sentencepiece_model), tmp_path / "bad.tsv"
  path.write_text("one\teno\ntwo three\n")
  done = launcher(bindings=[
      STEPS.format(50), f"synthesizer_mtf.tasks.pairs.train = '{path}'"])
  assert done.returncode == 1
  assert done.stderr.strip().splitlines()[-1].startswith(
      f"synthesizer_mesh_transformer: '{path}', line 2: 1 columns, but a pair")
  assert "traceback" not in done.stderr.lower() and not steps(launcher)
