"""The commands that users type, in processes, on a tiny model and real text.

Other tests run the same in other ways: test_serving.py decodes classes,
docs/test_t5_recipes.py decodes, scores and exports, test_demo_command.py evaluates,
test_crash_safety.py resumes, and test_offline.py runs the installed script.
"""

import pytest
from support import hugging_face
from support import in_process
from support import launching
from support import processes
from support.events import scalars
from synthesizer_mtf.tools.hugging_face import importing
import tensorflow.compat.v1 as tf


def test_training_writes_summaries_of_the_attention(tmp_path, sentencepiece_model):
  launcher = launching.Launcher(tmp_path, sentencepiece_model)
  done = launcher("attention_summaries.gin", bindings=[
      launching.STEPS.format(4), "train_with_attention_summaries.every_steps = 2"])
  assert done.returncode == 0, done.stderr[-3000:]
  assert launching.steps(launcher)[-1] == 4
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
  launcher = launching.Launcher(tmp_path, sentencepiece_model)
  path = tmp_path / "bad.tsv"
  path.write_text("one\teno\ntwo three\n")
  done = launcher(bindings=[
      launching.STEPS.format(50), f"synthesizer_mtf.tasks.pairs.train = '{path}'"])
  assert done.returncode == 1
  assert done.stderr.strip().splitlines()[-1].startswith(
      f"synthesizer_mesh_transformer: '{path}', line 2: 1 columns, but a pair")
  assert "traceback" not in done.stderr.lower() and not launching.steps(launcher)


def test_r_plus_v_is_fine_tuned_from_an_imported_model(
    tmp_path, sentencepiece_model):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  hugging_face.write(theirs, sentencepiece_model, **hugging_face.T5_1_1)
  importing.run(str(theirs), str(ours))
  launch = launching.Launcher(tmp_path, "unused")
  words = [f"--model_dir={tmp_path}/model"] + [
      f"--gin_file={name}" for name in (
          "dataset.gin", ours / "operative_config.gin", "attention/r+v.gin",
          "warm_start/from_t5.gin",
          "learning_rate_schedules/constant_0_001.gin", "cpu.gin")]
  words += [f"--gin_param={binding}" for binding in (
      f"warm_start.checkpoint = '{ours}'", "MIXTURE_NAME = 'synth_text_pairs'",
      f"synthesizer_mtf.tasks.pairs.train = '{tmp_path}/train.tsv'",
      "utils.run.sequence_length = {'inputs': 16, 'targets': 12}",
      "utils.run.batch_size = 4", launching.STEPS.format(2))]
  done = processes.run(words, tmp_path)
  assert done.returncode == 0, done.stderr[-3000:]
  assert "52 variables start from" in done.stderr
  assert ("Warm start: fresh: encoder/block_*/layer_000/SyntheticAttention/R "
          "(2), encoder/block_*/layer_000/SyntheticAttention/alpha (2), decoder/"
          "block_*/layer_000/SyntheticAttention/R (2), decoder/block_*/layer_000/"
          "SyntheticAttention/alpha (2).") in done.stderr
  assert launching.steps(launch)[-1] == 2
  trained = tf.train.load_checkpoint(str(tmp_path / "model" / "model.ckpt-2"))
  # The embedding keeps the rows and the dtype of the import.
  assert trained.get_variable_to_shape_map()["shared/embedding"] == [640, 8]
  assert trained.get_tensor("shared/embedding").dtype == "float32"


CLASSIFIER = ["dataset.gin", "models/table7/linformer.gin", "models/table7/laptop.gin",
              "learning_rate_schedules/constant_0_001.gin"]
TASK = "synth_ag_news_encoder"


@pytest.mark.usefixtures("parsed_flags", "tasks_to_read")
def test_eval_writes_classes_and_their_accuracy(tmp_path, sentencepiece_model):
  command = in_process.Command(tmp_path, sentencepiece_model)
  bindings = [f"MIXTURE_NAME = '{TASK}'", "Linformer.rank = 3",
              "utils.run.sequence_length = {'inputs': 12, 'targets': 1}"]
  assert not command.run("model", *CLASSIFIER, bindings=bindings)
  assert not command.run("model", *CLASSIFIER, "eval.gin", bindings=[
      *bindings, "utils.run.dataset_split = 'test'", "eval_checkpoint_step = 1"])
  folder = tmp_path / "model" / "test_eval"
  predictions, targets = ((folder / f"{TASK}_{name}").read_text().splitlines()
                          for name in ("1_predictions", "targets"))
  assert targets and {*targets, *predictions} <= {
      "World", "Sports", "Business", "Sci/Tech"}
  right = sum(p == t for p, t in zip(predictions, targets, strict=True))
  assert scalars(folder)[f"eval/{TASK}/accuracy"] == (
      pytest.approx(100 * right / len(targets)))
