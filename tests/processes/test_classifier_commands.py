"""The commands that train, evaluate and run a classifier."""

import pytest
from support import processes
from support.events import scalars
import tensorflow_datasets as tfds

VOCABULARY = "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = '{}'"


class Launcher:
  """Trains a tiny Linformer on a made-up data set `ag_news_subset` of TFDS."""

  def __init__(self, folder, vocabulary):
    self.folder = folder
    self.vocabulary = vocabulary
    words = ["war", "goal", "money", "computer"]
    rows = [{"title": f"{words[i % 4]} {i}", "description": words[i % 4] * 2,
             "label": i % 4} for i in range(24)]
    write("ag_news_subset:1.0.0", folder, {"train": rows, "test": rows[:6]})

  def __call__(self, *gin_files, bindings=()):
    files = ["dataset.gin", "models/table7/linformer.gin",
             "models/table7/laptop.gin",
             "learning_rate_schedules/constant_0_001.gin", *gin_files, "cpu.gin"]
    bindings = [
        VOCABULARY.format(self.vocabulary),
        "MIXTURE_NAME = 'synth_ag_news_encoder'", "d_model = 16", "d_ff = 24",
        "num_heads = 2", "d_kv = 6", "num_layers = 1",
        "utils.run.batch_size = 4",
        "utils.run.sequence_length = {'inputs': 12, 'targets': 1}",
        "Linformer.rank = 3", *bindings]
    done = processes.run(
        [f"--model_dir={self.folder}/model", f"--t5_tfds_data_dir={self.folder}",
         *(f"--gin_file={name}" for name in files),
         *(f"--gin_param={b}" for b in bindings)], self.folder)
    assert done.returncode == 0, done.stderr[-3000:]


def write(name, folder, splits):
  """Writes rows as the data set `name` of TFDS, by its own builder."""
  builder = tfds.builder(name, data_dir=str(folder))
  builder._split_generators = lambda dl_manager: {
      split: list(enumerate(rows)) for split, rows in splits.items()}
  builder.download_and_prepare(download_config=tfds.download.DownloadConfig(
      try_download_gcs=False, register_checksums=False))


@pytest.fixture(scope="module", name="launcher")
def fixture_launcher(tmp_path_factory, sentencepiece_model):
  """A launcher that has trained for 3 steps."""
  run = Launcher(tmp_path_factory.mktemp("classifier"), sentencepiece_model)
  run(bindings=["utils.run.train_steps = 3"])
  return run


def test_eval_writes_classes_and_their_accuracy(launcher):
  launcher("eval.gin", bindings=[
      "utils.run.dataset_split = 'test'", "utils.run.batch_size = 4",
      "eval_checkpoint_step = 3"])
  folder = launcher.folder / "model" / "test_eval"
  predictions, targets = [
      (folder / f"synth_ag_news_encoder_{n}").read_text().split()
      for n in ("3_predictions", "targets")]
  assert sorted(targets) == list("001123") and set(predictions) <= set("0123")
  right = sum(p == t for p, t in zip(predictions, targets))
  assert scalars(folder)["eval/synth_ag_news_encoder/accuracy"] == (
      pytest.approx(100 * right / 6))


def test_infer_writes_the_names_of_classes(launcher):
  (launcher.folder / "texts").write_text("war in the north\na late goal\n")
  launcher("infer.gin", bindings=[
      "infer_checkpoint_step = 3", "input_filename = 'texts'",
      f"output_filename = '{launcher.folder}/classes'"])
  found = (launcher.folder / "classes-3").read_text().splitlines()
  assert len(found) == 2
  assert set(found) <= {"World", "Sports", "Business", "Sci/Tech"}
