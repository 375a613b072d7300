"""The launcher trains from, and decodes with, a model imported from Hugging Face."""

from support import hugging_face
from support import launching
from support import processes
from synthesizer_mtf.tools.hugging_face_bridge import importing
import tensorflow.compat.v1 as tf


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
