"""Checks name what an evaluation or a training lacks, before it starts."""

import contextlib
import functools
import os
import socket
import types
import urllib.request

import gin
import pytest
import seqio
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.trainer.data import data_checks
import t5.data

LENGTHS = {"inputs": 8, "targets": 6}
NOWHERE = "/nowhere/x"


def model(folder, *bindings, lengths=None):
  return synthesizer_mtf.MtfModel(
      model_dir=str(folder), tpu=None, sequence_length=lengths or LENGTHS, batch_size=4,
      extra_gin_bindings=list(bindings))


def trained(folder):
  """Makes a folder look as if a model had been trained in it."""
  for name in ("operative_config.gin", "model.ckpt-7.index"):
    (folder / name).write_text("")


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


@pytest.fixture(name="mixture")
def fixture_mixture(task):
  """A mixture whose rate is a number of examples, which its source does not know."""
  name = "tests_counted_mixture"
  seqio.MixtureRegistry.add(name, [task], default_rate=t5.data.rate_num_examples)
  yield name
  seqio.MixtureRegistry.remove(name)


# Wrong calls of an `MtfModel`, each with a part of the message.
CALLS = [
    (lambda m, c: m.eval(c.task, split="dev"),
     "`split` is 'dev', but `mixture_or_task_name` is 'tests_no_metrics', which has no "
     "such split; bind it to one of 'train'"),
    (lambda m, c: m.eval(c.task, split="train"), "`mixture_or_task_name` is "
     "'tests_no_metrics', which has no metrics to evaluate; choose another task"),
    (lambda m, c: m.train(c.mixture, 1),
     "mixes 'tests_no_metrics' at a rate that depends on its number of examples"),
    (lambda m, c: m.predict(NOWHERE, c.lines),
     "`input_file` is '/nowhere/x', but there is no such file"),
    (lambda m, c: m.predict(c.lines, NOWHERE),
     "`output_file` is '/nowhere/x', but there is no folder"),
    (lambda m, c: m.score(inputs=["a"], targets=NOWHERE),
     "`targets` is '/nowhere/x', but there is no such file"),
    (lambda m, c: m.score(["a", "b"], ["c", "d", "e"]),
     "`targets` has 3 texts, which is not a multiple of the 2 of `inputs`; give"),
    (lambda m, c: m.export(checkpoint_step=[7, 8]),
     r"`checkpoint_step` is \[7, 8\] but must be the step of one checkpoint"),
    (lambda m, c: m.finetune(c.task, 1, c.lines, [7]),
     r"`pretrained_checkpoint_step` is \[7\] but must be the step of one")]
# Wrong bindings of its training.
BINDINGS = {
    "DenseReluDense.dropout_rate = 10": "`DenseReluDense.dropout_rate` is .* below",
    "mesh_train_dataset_fn.use_cached = True":
        "`mesh_train_dataset_fn.use_cached` is True, but there is no cache of "
        "'tests_no_metrics', which .*; bind it"}


def test_the_python_api_names_a_mistake_before_it_writes_or_needs_a_checkpoint(
    task, mixture, tmp_path, monkeypatch):
  monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
  (tmp_path / "lines").write_text("one\ntwo\n")
  before = os.listdir(tmp_path)
  case = types.SimpleNamespace(
      task=task, mixture=mixture, lines=str(tmp_path / "lines"))
  for call, said in CALLS:
    gin.clear_config()
    with pytest.raises(ValueError, match=said):
      call(model(tmp_path), case)
  for binding, said in BINDINGS.items():
    gin.clear_config()
    with pytest.raises(checks.Error, match=said):
      model(tmp_path, binding).train(task, 1)
  assert os.listdir(tmp_path) == before


def test_beams_with_a_temperature_are_refused_before_a_checkpoint_is_read(tmp_path):
  said = "`temperature` is 1.0 but `beam_size` is 2, and beam search has no temperature"
  beams = {"beam_size": 2, "temperature": 1.0, "vocabulary": seqio.ByteVocabulary()}
  lines = tmp_path / "lines"
  lines.write_text("one\n")
  trained(tmp_path)
  with pytest.raises(checks.Error, match=said):
    model(tmp_path).predict(str(lines), str(lines), checkpoint_steps=7, **beams)
  with pytest.raises(checks.Error, match=said):
    model(tmp_path).export(checkpoint_step=7, **beams)


def test_lengths_of_other_features_are_refused_before_a_training(tmp_path):
  with pytest.raises(ValueError, match="`sequence_length` is .* without the feature "
                     "'inputs' of 'synth_text_pairs', but 'input', which"):
    model(tmp_path, lengths={"input": 8, "targets": 6}).train(
        "synth_text_pairs", steps=1)


def of_texts(targets, predictions):
  return {"of_texts": len(targets) + len(predictions)}


def of_scores(targets, scores):
  return {"of_scores": len(targets) + len(scores)}


def of_more(targets, predictions, aux_values):
  return {"of_more": len(targets) + len(predictions) + len(aux_values)}


@pytest.fixture
def measured(monkeypatch, task):
  """Gives metrics to the task."""
  def give(*metrics):
    found = seqio.TaskRegistry.get(task)
    monkeypatch.setattr(found, "_metric_fn_constructor_args", metrics)
    for name in [each for each in vars(found) if each.endswith("metric_fns")]:
      del vars(found)[name]  # seqio remembers them.

  return give


def test_a_metric_that_gets_other_values_is_refused_and_one_of_texts_is_told(
    task, measured, caplog):
  data_checks.check_metrics(task, None)  # There are none.
  for metrics, given, said in [
      ([of_texts, of_scores], "predictions",
       "metric of_scores takes scores, .* --gin_file=score_eval.gin"),
      ([functools.partial(of_scores)], "predictions", "metric of_scores takes scores"),
      ([of_more], "predictions", "metric of_more takes aux_values"),
      ([of_more, of_scores], "scores", "metric of_more takes aux_values"),
      ([of_texts, of_more], "scores", "metrics of_texts, of_more compare predictions, "
       "but .* scores .*eval.gin .*eval_with_score .*score_from_task.gin")]:
    measured(*metrics)
    data_checks.check_metrics(task, None)
    with pytest.raises(checks.Error, match=said):
      data_checks.check_metrics(task, given)
  measured(of_texts, of_scores)
  data_checks.check_metrics(task, "scores")
  assert "metric of_texts takes targets and predictions" in caplog.text
  assert "of_scores" not in caplog.text


@pytest.mark.parametrize("method", ["predict", "export"])
def test_t5s_own_temperature_is_told(method, tmp_path, caplog, monkeypatch):
  base = synthesizer_mtf.MtfModel.__bases__[0]
  monkeypatch.setattr(base, method, functools.wraps(getattr(base, method))(
      lambda *args, **kwargs: None))
  trained(tmp_path)
  (tmp_path / "inputs").write_text("a\n")
  paths = [str(tmp_path / name) for name in ("inputs", "outputs")]
  for bindings, chosen, said in [
      ([], {}, True), ([], {"temperature": 1.0}, False), ([], {"beam_size": 4}, False),
      (["Bitransformer.decode.temperature = 0.5"], {}, False)]:
    caplog.clear()
    call = getattr(model(tmp_path, *bindings), method)
    call(*paths[0 if method == "predict" else 1:], **chosen)
    assert ("T5's default temperature of 1.0" in caplog.text) == said


def test_the_python_api_has_a_remedy_of_its_own_for_long_texts(
    task, measured, tmp_path, monkeypatch):
  def evaluate(*args, **kwargs):
    checks.check_length("RandomLogits.max_length", 8, 12)

  measured(of_texts)
  trained(tmp_path)
  base = synthesizer_mtf.MtfModel.__bases__[0]
  monkeypatch.setattr(base, "eval", functools.wraps(base.eval)(evaluate))
  with pytest.raises(checks.Error, match=(
      "raise `RandomLogits.max_length` to 12 or more, or pass "
      "compute_sequence_length=False, which cuts texts to the model's")):
    model(tmp_path).eval(task, split="train")


def test_a_vocabulary_that_cannot_be_read_is_named_with_its_task(monkeypatch):
  def connect(*args):
    raise socket.gaierror(-2, "Name or service not known")

  monkeypatch.setattr(socket, "create_connection", connect)
  monkeypatch.setattr(urllib.request, "getproxies", dict)
  remote = "gs://bucket/spm.model"  # It is missed at once without a network.
  offline = "no network to storage.googleapis.com: Name or service not known"
  for path, said in (("/nowhere/spm.model", ".*spm.model.*"), (remote, offline)):
    features = {"targets": seqio.Feature(seqio.SentencePieceVocabulary(path))}
    with pytest.raises(checks.Error, match="`MIXTURE_NAME` is 'far', whose vocabulary "
                       f"cannot be read .{said}.*; without a network, choose a task"):
      data_checks.check_vocabularies("far", features)
  with pytest.raises(checks.Error, match=f"`it` is '{remote}'.*{offline}.*name a Sent"):
    vocabulary.load("`it`", remote)
  monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "there"})
  assert not checks.unreachable(remote)


def test_rates_of_t5s_own_files_and_of_functions_of_ones_own_pass():
  @gin.configurable(module="tests.of_ones_own")
  def masked(dropout_rate=0.0, label_smoothing=0.0):  # Percentages, say.
    return dropout_rate, label_smoothing

  gin_files.parse([], [
      "DenseReluDense.dropout_rate = 0.0", "preprocessors.denoise.noise_density = 1.0",
      "masked.dropout_rate = 10", "masked.label_smoothing = -1"])
  assert masked() == (10, -1)


def test_a_cache_that_is_there_passes(task, tmp_path, monkeypatch):
  gin.bind_parameter("mesh_train_dataset_fn.use_cached", True)
  monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
  seqio.add_global_cache_dirs([str(tmp_path)])
  (tmp_path / task).mkdir()
  (tmp_path / task / "COMPLETED").write_text("")
  data_checks.check_cached(task)


def test_rates_that_are_known_or_fail_by_themselves_are_left_alone(task):
  data_checks.check_rates(task)
  data_checks.check_rates("unknown")
  seqio.MixtureRegistry.add("tests_own_rate", [task], default_rate=lambda: 1)
  try:
    with pytest.raises(TypeError, match="positional argument"):
      data_checks.check_rates("tests_own_rate")
  finally:
    seqio.MixtureRegistry.remove("tests_own_rate")


@pytest.mark.parametrize("features, model_type, mode, message", [
    ("inputs", "bitransformer", "score_eval", "'alone' has no targets to score; ch"),
    ("inputs", "lm", "train", "'alone' has no targets to train on"),
    ("inputs", "delimited_lm", "perplexity_eval", "has no targets to evaluate"),
    ("targets", "bitransformer", "train", "no inputs for .*'bitransformer'; .* 'lm'"),
    ("targets", "lm", "eval", "no inputs for a model of .* 'lm'; choose a task with"),
    ("inputs targets", "lm", "train", "has inputs, and .*'lm', .*'delimited_lm'"),
    ("targets", "lm", "train", None), ("targets", "lm", "score_from_dataset", None),
    ("inputs targets", "lm", "score_from_dataset", None),
    ("inputs targets", "lm", "eval", None),
    ("inputs targets", "bitransformer", "train", None)])
def test_a_task_lacks_no_text_that_the_model_reads(
    features, model_type, mode, message, monkeypatch):
  alone = types.SimpleNamespace(
      name="alone", output_features=dict.fromkeys(features.split()))
  monkeypatch.setattr(data_checks, "_tasks", lambda name: [alone])
  monkeypatch.setattr(data_checks, "is_known", lambda name: True)
  with (pytest.raises(ValueError, match=message) if message
        else contextlib.nullcontext()):
    data_checks.check_features("alone", model_type, mode)


def test_packed_rows_and_a_second_vocabulary_are_not_scored():
  data_checks.check_unpacked("a score needs")
  gin.parse_config("mesh_eval_dataset_fn.pack = True")
  with pytest.raises(ValueError, match="pack` is True, but a score needs a row for ea"):
    data_checks.check_unpacked("a score needs")
  first, second = seqio.ByteVocabulary(), seqio.ByteVocabulary(7)
  for fine in (first, None, (first,), (first, first), (first, seqio.ByteVocabulary())):
    data_checks.check_one_vocabulary(fine, "targets")
  with pytest.raises(ValueError, match="reads `targets` with the vocabulary of the in"):
    data_checks.check_one_vocabulary((first, second), "targets")
