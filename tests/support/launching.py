"""Runs the launcher with a tiny model and real text."""

import pydoc_data.topics
import re

import gin
from support import processes

STEPS = "utils.run.train_steps = {}"
# T5's optimizer is a quarter of the operations of a tiny model.
ADAFACTOR = "utils.run.optimizer = @optimize.AdafactorOptimizer"
SGD = "utils.run.optimizer = @optimize.SgdOptimizer"
ONE_STACK = "utils.run.model_type = 'delimited_lm'"


class Launcher:
  """Runs the launcher with a tiny R+V model on pairs of words."""

  def __init__(self, folder, vocabulary):
    self.folder = folder
    self.vocabulary = vocabulary
    self.model_dir = folder / "model"
    words = sorted(set(re.findall(
        r"\b[a-z]{3,9}\b", pydoc_data.topics.topics["naming"])))
    rows = [f"{word}\t{word[::-1]}" for word in words]
    (folder / "train.tsv").write_text("\n".join(rows[8:]) + "\n")
    (folder / "dev.tsv").write_text("\n".join(rows[:8]) + "\n")
    self.words = words[:8]

  def bindings(self):
    return [
        "MIXTURE_NAME = 'synth_text_pairs'",
        f"synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
        f"'{self.vocabulary}'",
        f"synthesizer_mtf.tasks.pairs.train = '{self.folder}/train.tsv'",
        f"synthesizer_mtf.tasks.pairs.validation = '{self.folder}/dev.tsv'",
        "d_model = 16", "d_ff = 24", "num_heads = 2", "d_kv = 6",
        "num_layers = 1", "utils.run.batch_size = 4",
        "utils.run.sequence_length = {'inputs': 16, 'targets': 12}",
        "Bitransformer.decode.max_decode_length = 8",
        "utils.run.save_checkpoints_steps = 4", SGD]

  def data_bindings(self):
    return [b for b in self.bindings() if "synthesizer_mtf.tasks" in b]

  def bind_data(self):
    """Binds only the data in gin, as a notebook does before it loads a model."""
    gin.parse_config(self.data_bindings())

  def __call__(self, *gin_files, bindings=(), run=processes.run, mesh="cpu.gin"):
    """Runs the launcher with the model's gin files and bindings, and with more."""
    files = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
             "learning_rate_schedules/constant_0_001.gin", *gin_files, mesh]
    words = [f"--model_dir={self.model_dir}"]
    words += [f"--gin_file={name}" for name in files]
    words += [f"--gin_param={b}" for b in [*self.bindings(), *bindings]]
    return run(words, self.folder)


def decoded(path):
  """Returns the lines that Mesh has decoded; even an empty one ends in a line break."""
  *lines, rest = path.read_text().split("\n")
  assert not rest
  return lines


def steps(launcher):
  return sorted(int(p.stem.split("-")[1])
                for p in launcher.model_dir.glob("model.ckpt-*.index"))
