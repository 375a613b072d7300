"""Checks name what an evaluation or a training lacks, before it starts."""

import functools
import os
import socket
import urllib.request

import gin
import pytest
import seqio
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.training import data_checks
import t5.data

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
  seqio.TaskRegistry.add(
      name, source, preprocessors=[seqio.CacheDatasetPlaceholder()], output_features={
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
  data_checks.check_metrics(task, None)


def of_texts(targets, predictions):
  return {"of_texts": len(targets) + len(predictions)}


def of_scores(targets, scores):
  return {"of_scores": len(targets) + len(scores)}


def of_more(targets, predictions, aux_values):
  return {"of_more": len(targets) + len(predictions) + len(aux_values)}


@pytest.fixture
def measured(monkeypatch, task):
  """Gives metrics to the task."""
  return lambda *metrics: monkeypatch.setattr(
      seqio.TaskRegistry.get(task), "_metric_fn_constructor_args", metrics)


@pytest.mark.parametrize("metrics, given, said", [
    ([of_texts, of_scores], "predictions",
     "metric of_scores takes scores, .* --gin_file=score_eval.gin"),
    ([functools.partial(of_scores)], "predictions", "metric of_scores takes scores"),
    ([of_more], "predictions", "metric of_more takes aux_values"),
    ([of_more], "scores", "metric of_more takes aux_values")])
def test_a_metric_that_gets_other_values_is_refused(
    metrics, given, said, task, measured):
  measured(*metrics)
  data_checks.check_metrics(task, None)
  with pytest.raises(checks.Error, match=said):
    data_checks.check_metrics(task, given)


def test_a_metric_of_texts_that_gets_scores_causes_a_warning(task, measured, caplog):
  measured(of_texts, of_scores)
  data_checks.check_metrics(task, "scores")
  assert "metric of_texts takes targets and predictions" in caplog.text
  assert "of_scores" not in caplog.text


@pytest.mark.parametrize("bindings, chosen, said", [
    ([], {}, True), ([], {"temperature": 1.0}, False), ([], {"beam_size": 4}, False),
    (["Bitransformer.decode.temperature = 0.5"], {}, False)])
@pytest.mark.parametrize("method", ["predict", "export"])
def test_t5s_own_temperature_is_told(
    method, bindings, chosen, said, tmp_path, caplog, monkeypatch):
  base = synthesizer_mtf.MtfModel.__bases__[0]
  monkeypatch.setattr(base, method, functools.wraps(getattr(base, method))(
      lambda *args, **kwargs: None))
  (tmp_path / "inputs").write_text("a\n")
  paths = [str(tmp_path / name) for name in ("inputs", "outputs")]
  call = getattr(model(tmp_path, LENGTHS, *bindings), method)
  call(*paths[:2 if method == "predict" else 1], **chosen)
  assert ("T5's default temperature of 1.0" in caplog.text) == said


def test_the_python_api_has_a_remedy_of_its_own_for_long_texts(
    task, measured, tmp_path, monkeypatch):
  def evaluate(*args):
    checks.check_length("RandomLogits.max_length", 8, 12)

  measured(of_texts)
  monkeypatch.setattr(synthesizer_mtf.MtfModel.__bases__[0], "eval", evaluate)
  with pytest.raises(checks.Error, match=(
      "raise `RandomLogits.max_length` to 12 or more, or pass "
      "compute_sequence_length=False, which cuts texts to the model's")):
    model(tmp_path, LENGTHS).eval(task, split="train")


def test_a_vocabulary_that_cannot_be_read_is_named_with_its_task():
  features = {"targets": seqio.Feature(
      seqio.SentencePieceVocabulary("/nowhere/spm.model"))}
  with pytest.raises(checks.Error, match="`MIXTURE_NAME` is 'far', whose vocabulary "
                     "cannot be read .*spm.model.*; without a network, choose"):
    data_checks.check_vocabularies("far", features)


def test_a_vocabulary_in_cloud_storage_is_missed_at_once_without_a_network(
    monkeypatch):
  def connect(*args):
    raise socket.gaierror(-2, "Name or service not known")

  monkeypatch.setattr(socket, "create_connection", connect)
  monkeypatch.setattr(urllib.request, "getproxies", dict)
  path = "gs://bucket/spm.model"
  features = {"targets": seqio.Feature(seqio.SentencePieceVocabulary(path))}
  said = "no network to storage.googleapis.com: Name or service not known"
  with pytest.raises(checks.Error, match=f"vocabulary cannot be read .{said}.*a task"):
    data_checks.check_vocabularies("far", features)
  with pytest.raises(checks.Error, match=f"`it` is '{path}'.*{said}.*name a Sentence"):
    vocabulary.load("`it`", path)
  monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "there"})
  assert not checks.unreachable(path)


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


def test_a_cache_that_is_missing_is_named_before_the_training(
    task, tmp_path, monkeypatch):
  monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
  gin.bind_parameter("mesh_train_dataset_fn.use_cached", True)
  with pytest.raises(checks.Error, match="`mesh_train_dataset_fn.use_cached` is True, "
                     "but there is no cache of 'tests_no_metrics', which .*; bind it"):
    model(tmp_path, LENGTHS).train(task, 1)
  assert not os.listdir(tmp_path)
  seqio.add_global_cache_dirs([str(tmp_path)])
  (tmp_path / task).mkdir()
  (tmp_path / task / "COMPLETED").write_text("")
  data_checks.check_cached(task)


@pytest.fixture(name="lines")
def fixture_lines(tmp_path):
  path = tmp_path / "lines"
  path.write_text("one\ntwo\n")
  return str(path)


def test_beams_with_a_temperature_are_refused_before_a_checkpoint_is_read(
    lines, tmp_path):
  said = "`temperature` is 1.0 but `beam_size` is 2, and beam search has no temperature"
  arguments = {"beam_size": 2, "vocabulary": seqio.ByteVocabulary()}
  (tmp_path / "operative_config.gin").write_text("")
  with pytest.raises(checks.Error, match=said):
    model(tmp_path, LENGTHS).predict(lines, lines, checkpoint_steps=7, **arguments)
  with pytest.raises(checks.Error, match=said):
    model(tmp_path, LENGTHS).export(checkpoint_step=7, **arguments)


@pytest.mark.parametrize("call, said", [
    (lambda model, lines: model.predict("/nowhere/x", lines),
     "`input_file` is '/nowhere/x', but there is no such file"),
    (lambda model, lines: model.predict(lines, "/nowhere/x"),
     "`output_file` is '/nowhere/x', but there is no folder"),
    (lambda model, lines: model.score(inputs=["a"], targets="/nowhere/x"),
     "`targets` is '/nowhere/x', but there is no such file"),
    (lambda model, lines: model.export(checkpoint_step=[7, 8]),
     r"`checkpoint_step` is \[7, 8\] but must be the step of one checkpoint"),
    (lambda model, lines: model.finetune("a_task", 1, lines, [7]),
     r"`pretrained_checkpoint_step` is \[7\] but must be the step of one"),
], ids=range(5))
def test_a_missing_file_and_several_steps_are_named(call, said, lines, tmp_path):
  with pytest.raises(checks.Error, match=said):
    call(model(tmp_path, LENGTHS), lines)


@pytest.fixture(name="mixture")
def fixture_mixture(task):
  """A mixture whose rate is a number of examples, which its source does not know."""
  name = "tests_counted_mixture"
  seqio.MixtureRegistry.add(name, [task], default_rate=t5.data.rate_num_examples)
  yield name
  seqio.MixtureRegistry.remove(name)


def test_a_rate_that_nothing_gives_is_named_with_its_task(mixture, task, tmp_path):
  said = f"mixes '{task}' at a rate that depends on its number of examples"
  with pytest.raises(checks.Error, match=said):
    model(tmp_path, LENGTHS).train(mixture, 1)
  with pytest.raises(checks.Error, match=said):
    data_checks.check_rates(mixture)
  data_checks.check_rates(task)
  data_checks.check_rates("unknown")


def test_an_error_in_a_rate_of_ones_own_stays(task):
  seqio.MixtureRegistry.add("tests_own_rate", [task], default_rate=lambda: 1)
  try:
    with pytest.raises(TypeError, match="positional argument"):
      data_checks.check_rates("tests_own_rate")
  finally:
    seqio.MixtureRegistry.remove("tests_own_rate")
