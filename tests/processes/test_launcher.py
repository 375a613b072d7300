"""The commands that users type, in subprocesses, on a tiny model and real text."""

import subprocess
import sys

import pytest
from support import processes
from support.events import scalars
from support.launching import decoded
from support.launching import Launcher
from support.launching import STEPS
from support.launching import steps
import tensorflow.compat.v1 as tf


@pytest.fixture(scope="module")
def launcher(tmp_path_factory, sentencepiece_model):
  """A launcher whose model directory holds a model trained for 4 steps."""
  run = Launcher(tmp_path_factory.mktemp("launcher"), sentencepiece_model)
  done = run("attention_summaries.gin", run=processes.run_installed, bindings=[
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
    assert (f"encoder/block_001/layer_000/SyntheticAttention/{name}"
            in names), names


def test_training_writes_summaries_of_the_attention(launcher):
  written = {}
  for path in launcher.model_dir.glob("events*"):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        written.setdefault(value.tag, []).append(event.step)
  for name in ("alpha/R", "entropy", "distance", "heads/image"):
    first, second = written[f"attention/decoder/block_001/{name}"][:2]
    assert second - first == 2


def test_perplexity_eval_of_t5s_own_command_writes_the_log_perplexity(launcher):
  done = launcher("perplexity_eval.gin", run=processes.run_stock, bindings=[
      "mesh_eval_dataset_fn.num_eval_examples = 8",
      "utils.run.dataset_split = 'validation'",
      "utils.run.perplexity_eval_steps = 2", "eval_checkpoint_step = 4"])
  assert done.returncode == 0, done.stderr[-3000:]
  folder, = launcher.model_dir.glob("eval_*")
  assert -10 < scalars(folder)["neg_log_perplexity"] < -1


def test_eval_writes_predictions_and_metrics(launcher):
  done = launcher("eval.gin", bindings=[
      "eval_checkpoint_step = 4", "utils.run.batch_size = 4",
      "utils.run.dataset_split = 'validation'"])
  assert done.returncode == 0, done.stderr[-3000:]
  folder = launcher.model_dir / "validation_eval"
  metrics = scalars(folder)
  assert {"eval/synth_text_pairs/bleu",
          "eval/synth_text_pairs/sequence_accuracy"} <= set(metrics)
  assert len(decoded(folder / "synth_text_pairs_4_predictions")) == 8


@pytest.mark.parametrize("how", ["beam_search", "sample_decode"])
def test_infer_decodes_a_file_and_says_how_long_decodes_can_be(launcher, how):
  source = launcher.folder / "words.txt"
  source.write_text("\n".join(launcher.words[:3]) + "\n")
  output = launcher.folder / f"{how}.txt"
  done = launcher("infer.gin", f"{how}.gin", bindings=[
      "infer_checkpoint_step = 4", f"input_filename = '{source}'",
      f"output_filename = '{output}'", "utils.run.batch_size = 4",
      "synthesizer_decode_length.tokens = 3"])
  assert done.returncode == 0, done.stderr[-3000:]
  assert len(decoded(output.with_name(f"{how}.txt-4"))) == 3
  assert "Decodes have at most 3 tokens" in done.stderr


def test_an_exported_model_decodes_as_the_trainer(launcher):
  source = launcher.folder / "words.txt"
  source.write_text("\n".join(launcher.words) + "\n")
  export = launcher.folder / "export"
  common = ["utils.run.batch_size = 8"]
  done = launcher("greedy_decode.gin", "export.gin", bindings=common + [
      "utils.run.export_checkpoint_step = 4", f"export_path = '{export}'"])
  assert done.returncode == 0, done.stderr[-3000:]
  output = launcher.folder / "trainer.txt"
  done = launcher("infer.gin", "greedy_decode.gin", bindings=common + [
      "infer_checkpoint_step = 4", f"input_filename = '{source}'",
      f"output_filename = '{output}'"])
  assert done.returncode == 0, done.stderr[-3000:]
  expected = decoded(output.with_name("trainer.txt-4"))
  assert len(expected) == len(launcher.words)
  saved, = export.iterdir()
  script = (
      "import tensorflow as tf, tensorflow_text, sys\n"
      "m = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
      "for o in m(tf.constant(sys.argv[2:]))['outputs'].numpy():\n"
      "  print('>' + o.decode())\n")
  loaded = subprocess.run(
      [sys.executable, "-c", script, str(saved), *launcher.words],
      capture_output=True, text=True, check=False)
  assert loaded.returncode == 0, loaded.stderr[-3000:]
  assert [line[1:] for line in loaded.stdout.split("\n")
          if line[:1] == ">"] == expected


def test_bad_input_ends_in_one_sentence_before_any_step(launcher):
  """test_mistakes.py tests other bad inputs, in the process of the tests."""
  assert_one_sentence(
      launcher, ["RandomLogits.max_length = 10"],
      "`RandomLogits.max_length` is 10 but the sequence has length 16")


def assert_one_sentence(launcher, bindings, message):
  before = steps(launcher)
  done = launcher(bindings=[STEPS.format(50), *bindings])
  assert done.returncode == 1
  assert message in done.stderr.strip().splitlines()[-1]
  assert "traceback" not in done.stderr.lower()
  assert steps(launcher) == before


def test_a_bad_file_of_the_user_ends_in_one_sentence_with_its_line(launcher):
  path = launcher.folder / "bad.tsv"
  path.write_text("one\teno\ntwo three\n")
  assert_one_sentence(
      launcher, [f"synthesizer_mtf.tasks.pairs.train = '{path}'"],
      f"synthesizer_mesh_transformer: '{path}', line 2: 1 columns, but a pair")
