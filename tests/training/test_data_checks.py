"""Checks name what an evaluation or a training lacks, before it starts."""

import os

import gin
import pytest
import seqio
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.training import data_checks

LENGTHS = {"inputs": 8, "targets": 6}


def model(folder, lengths, *bindings):
  return synthesizer_mtf.MtfModel(
      model_dir=str(folder), tpu=None, sequence_length=lengths, batch_size=4,
      extra_gin_bindings=list(bindings))


@pytest.fixture(name="task")
def fixture_task():
  """A task with one split and no metrics, which reads no data."""
  name = "tests_no_metrics"
  source = seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: None, splits=["train"])
  seqio.TaskRegistry.add(name, source, preprocessors=[], output_features={
      key: seqio.Feature(seqio.ByteVocabulary()) for key in LENGTHS})
  yield name
  seqio.TaskRegistry.remove(name)


@pytest.mark.parametrize("split, said", [
    ("dev", "`split` is 'dev', but `mixture_or_task_name` is 'tests_no_metrics', "
     "which has no such split; bind it to one of 'train'"),
    ("train", "`mixture_or_task_name` is 'tests_no_metrics', which has no metrics to "
     "evaluate; choose another task"),
])
def test_an_evaluation_of_nothing_is_refused(split, said, task, tmp_path):
  with pytest.raises(ValueError, match=said):
    model(tmp_path, LENGTHS).eval(task, split=split)
  assert not os.listdir(tmp_path)


def test_metrics_are_needed_by_an_evaluation_only(task):
  data_checks.check_metrics(task, needed=False)


def test_a_vocabulary_that_cannot_be_read_is_named_with_its_task():
  features = {"targets": seqio.Feature(
      seqio.SentencePieceVocabulary("/nowhere/spm.model"))}
  with pytest.raises(checks.Error, match="`MIXTURE_NAME` is 'far', whose vocabulary "
                     "cannot be read .*spm.model.*; without a network, choose"):
    data_checks.check_vocabularies("far", features)


@pytest.mark.parametrize("name, said", [
    (3, "must be the name of a task; write it in quotes"),
    ("synth_text_pair", "no task or mixture; .* Did you mean synth_text_pairs")])
def test_a_name_that_is_no_task_is_refused(name, said):
  with pytest.raises(checks.Error, match=said):
    data_checks.check_task(name)


def test_lengths_of_other_features_are_refused_before_a_training(tmp_path):
  lengths = {"input": 8, "targets": 6}
  with pytest.raises(ValueError, match="`sequence_length` is .* without the feature "
                     "'inputs' of 'synth_text_pairs', but 'input', which"):
    model(tmp_path, lengths).train("synth_text_pairs", steps=1)


@pytest.mark.parametrize("binding", [
    "DenseReluDense.dropout_rate = 10", "sublayer_dropout.dropout_rate = -0.5",
    "decoder/Unitransformer.label_smoothing = 1.0"])
def test_rates_out_of_range_are_refused_in_the_python_api(binding, task, tmp_path):
  with pytest.raises(checks.Error, match=f"`{binding.partition(' ')[0]}` is .* below"):
    model(tmp_path, LENGTHS, binding).train(task, steps=1)


def test_rates_of_t5s_own_files_and_of_functions_of_ones_own_pass():
  @gin.configurable(module="tests.of_ones_own")
  def masked(dropout_rate=0.0, label_smoothing=0.0):  # Percentages, say.
    return dropout_rate, label_smoothing

  gin_files.parse([], [
      "DenseReluDense.dropout_rate = 0.0", "preprocessors.denoise.noise_density = 1.0",
      "masked.dropout_rate = 10", "masked.label_smoothing = -1"])
  assert masked() == (10, -1)


def test_a_cache_that_is_missing_is_named_before_the_training(task, tmp_path):
  gin.bind_parameter("mesh_train_dataset_fn.use_cached", True)
  with pytest.raises(checks.Error, match="`mesh_train_dataset_fn.use_cached` is True, "
                     "but there is no cache of 'tests_no_metrics', which .*; bind it"):
    model(tmp_path, LENGTHS).train(task, 1)
  assert not os.listdir(tmp_path)
  seqio.add_global_cache_dirs([str(tmp_path)])
  (tmp_path / task).mkdir()
  (tmp_path / task / "COMPLETED").write_text("")
  data_checks.check_cached(task)
