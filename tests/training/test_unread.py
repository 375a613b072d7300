"""Bindings of the user that a training does not read are named in one line."""

from absl.testing import flagsaver
import gin
import pytest
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.watching import unread


@gin.configurable(module="tests.unread")
def unread_warmup(steps=1000):
  return steps


INNER = "encoder/DenseReluDense.activation = 'relu'\n"
GELU = "DenseReluDense.activation = 'gelu'"


@pytest.fixture(name="told")
def fixture_told(tmp_path, log, parsed_flags):
  """Builds a model with own lines; returns what is said, and the path of the lines."""
  def told(lines, params=(), others=()):
    gin.clear_config()
    log.clear()
    path = tmp_path / "mine.gin"
    path.write_text(lines + "\n")
    files = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin", "cpu.gin",
             "table_length.gin", *others, str(path)]
    params = [*models.TINY, "num_layers = 1", *params]
    with flagsaver.flagsaver(gin_file=files, gin_param=params):
      gin_files.parse(files, params)
      m = models.Model()
      with m.tf_graph.as_default():
        ids = m.ids([[3, 4, 1, 0]])
        m.model.call_simple(ids, ids, True, mode="train")
      unread.warn()
    return [entry.getMessage() for entry in log.records
            if "does not read" in entry.getMessage()], path

  return told


def test_bindings_that_are_read_or_belong_to_other_modes_are_not_named(told):
  for lines in ("\n".join([
      GELU, "mine = 0.1", "RandomLogits.stddev = %mine",
      "decoder/RandomLogits.stddev = 0.1", "Bitransformer.decode.beam_size = 2",
      "mesh_eval_dataset_fn.num_eval_examples = 3", "train_with_seed.seed = 3",
      "tpu_mesh_shape.tpu_topology = '2x2'", "encoder/DenseReluDense:",
      "  hidden_size = 6"]), INNER + GELU, f"encoder/{GELU}"):
    assert not told(lines)[0], lines


def test_bindings_that_nothing_reads_are_named_in_one_line(told):
  (line,), path = told("\n".join([
      "unread_warmup.steps = 3", "ToeplitzLogits.max_length = 16",
      "encodr/RandomLogits.stddev = 0.1", "MoE1D.hidden_size = 4", "",
      "LocalSelfAttention.radius = 3"]))
  for said in (
      f"`unread_warmup.steps` ({path}, line 1)",
      f"ToeplitzLogits.max_length` ({path}, line 2)", "`encodr/RandomLogits.stddev` (",
      f"LocalSelfAttention.radius` ({path}, line 6)"):
    assert said in line
  (line,), _ = told(f"{INNER}decoder/DenseReluDense.activation = 'relu'\n{GELU}")
  assert "; decoder/ and encoder/ have their own)" in line
  (line,), _ = told("", ["unread_warmup.steps = 3"])
  assert "unread_warmup.steps` (--gin_param)." in line


def test_an_objective_of_t5_that_no_task_reads_is_named(told):
  (line,), _ = told("", others=["objectives/iid_50_u_u.gin"])
  assert "`unsupervised.preprocessors` (" in line and "objectives/denoise.gin" in line
