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
from support.paths import ROOT
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.trainer.data import data_checks
import t5.data

LENGTHS = {"inputs": 8, "targets": 6}
NOWHERE = "/nowhere/x"
TWO_DEVICES = {"mesh_shape": "batch:2", "mesh_devices": ["cpu:0", "cpu:0"]}


def model(folder, *bindings):
  return synthesizer_mtf.MtfModel(
      model_dir=str(folder), tpu=None, sequence_length=LENGTHS, batch_size=4,
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


# Wrong calls: functions of a maker of models and a case, and the beginning of what is
# said after the first "`".
CALLS = [
    (lambda new, c: new(model_dir=None), "model_dir` is None but must be a path; "),
    (lambda new, c: new(atention="R"), "MtfModel has no argument 'atention'. Did you "
     "mean attention?"),
    (lambda new, c: new(learning_rate=1), "Did you mean learning_rate_schedule?"),
    (lambda new, c: new(seed="1"), "seed` is '1' but must be an integer; "),
    (lambda new, c: new(tpu=3), "tpu` is 3 but must be the name or the address of a"),
    (lambda new, c: new(batch_size="4"), "batch_size` is '4' but must be a positive"),
    (lambda new, c: new(batch_size=("tokens_per_batch", 7)), "batch_size` is "
     "('tokens_per_batch', 7), less than one sequence of 8; raise it"),
    (lambda new, c: new(batch_size=3, **TWO_DEVICES), "batch_size` is 3 but "
     "`layout_rules` splits batch over the 2 parts of the mesh dimension 'batch'; make "
     "it a multiple of 2, or change `mesh_shape`."),
    (lambda new, c: new(**{**TWO_DEVICES, "mesh_devices": ["cpu:0"]}), "mesh_devices` "
     "names 1 devices, ['cpu:0'], but `mesh_shape` is 'batch:2' and needs 2; name"),
    (lambda new, c: new(learning_rate_schedule="0.1"), "be a number, or a function of"),
    (lambda new, c: new(extra_gin_bindings=5), "be a string of gin, or a list of them"),
    *((lambda new, c, value=value: new(attention=value), said) for value, said in [
        (synthesizer_mtf.SyntheticAttention, "attention` is the class "
         "SyntheticAttention, but gin binds no "),
        ("", "attention` names '', but '' is not an attention"),
        ([], "attention` has 0 entries, "), (["R", ""], "attention` names '', but"),
        ("R+X", "attention` names 'R+X', but 'X' is not an attention; use one of"),
        *((value, f'as in "R+V". Did you mean {meant}?') for value, meant in [
            ("r+v", "R+V"), ("RV", "R+V"), ("frd", "FR+D"), ("lightconv", "LightConv"),
            ("Linfomer", "Linformer")]),
        ([None], "attention` names None, but None is not an attention; for T5's own"),
        ("SelfAttention", "is not an attention; for T5's own attention give None")]),
    (lambda new, c: new(extra_gin_bindings="encoder/synthesizer_stack.attention = 'Q'"),
     "encoder/synthesizer_stack.attention` names 'Q', but"),
    (lambda new, c: gin_files.parse([], ["synthesizer_stack.attention = 'R+Q'"]),
     "synthesizer_stack.attention` names 'R+Q', but 'Q' is not"),
    (lambda new, c: gin_files.parse(3), "files` is 3 but must be a list of strings"),
    (lambda new, c: gin_files.parse("docs"), "files` is 'docs', which is a folder"),
    (lambda new, c: new().train(None, 1), "mixture_or_task_name` is None but must be"),
    (lambda new, c: new().train(c.task), "MtfModel.train needs the argument `steps`; "
     "pass `steps=...`."),
    (lambda new, c: new().train(c.task, step=1), "MtfModel.train has no argument "
     "'step'. Did you mean steps?"),
    (lambda new, c: new().train(c.task, 5, batch_size=4),
     "MtfModel.train has no argument 'batch_size'. Pass it to MtfModel."),
    (lambda new, c: new().train(c.task, "5"), "steps` is '5' but must be a positive i"),
    (lambda new, c: new(model_type="lm").train(c.task, 1), "mixture_or_task_name` is "
     "'tests_no_metrics', but 'tests_no_metrics' has inputs, and `model_type` is 'lm'"),
    (lambda new, c: new().train(c.mixture, 1),
     "mixes 'tests_no_metrics' at a rate that depends on its number of examples"),
    (lambda new, c: new(lengths={"input": 8, "targets": 6}).train(c.task, 1),
     "sequence_length` is {'input': 8, 'targets': 6}, without the feature 'inputs' of "
     "'tests_no_metrics', but 'input', which"),
    *((lambda new, c, line=line: new(extra_gin_bindings=line).train(c.task, 1), said)
      for line, said in [
          ("DenseReluDense.dropout_rate = 10", "DenseReluDense.dropout_rate` is 10 b"),
          ("mesh_train_dataset_fn.use_cached = True",
           "mesh_train_dataset_fn.use_cached` is True, but there is no cache of "
           "'tests_no_metrics', which `mixture_or_task_name` names; bind it")]),
    (lambda new, c: new().eval(c.task, split="dev"),
     "split` is 'dev', but `mixture_or_task_name` is 'tests_no_metrics', which has no "
     "such split; bind it to one of 'train'"),
    (lambda new, c: new().eval(c.task, split="train"), "mixture_or_task_name` is "
     "'tests_no_metrics', which has no metrics to evaluate; choose another task"),
    (lambda new, c: new().finetune(c.task, 1, "no"), "pretrained_model_dir` is 'no', "),
    (lambda new, c: new().finetune(c.task, 1, c.lines, [7]),
     "pretrained_checkpoint_step` is [7] but must be the step of one"),
    (lambda new, c: new().predict(["a"], "b"), "output_file` is 'b', but `input_file` "
     "is a list of texts, whose answers `predict` returns; leave it out, or give"),
    (lambda new, c: new().predict(["a"], checkpoint_steps=None), "checkpoint_steps` i"),
    (lambda new, c: new().predict(["a", 1]), "input_file` is ['a', 1] but must be a l"),
    (lambda new, c: new().predict(["a"]), "model_dir` is '{folder}', where there is n"),
    (lambda new, c: new().predict(c.lines), "MtfModel.predict needs the argument `out"),
    (lambda new, c: new().predict(NOWHERE, c.lines),
     "input_file` is '/nowhere/x', but there is no such file"),
    (lambda new, c: new().predict(c.lines, NOWHERE),
     "output_file` is '/nowhere/x', but there is no folder"),
    (lambda new, c: new().predict(c.lines, f"{c.lines}.out"),
     "model_dir` is '{folder}', where there is no checkpoint"),
    (lambda new, c: new().score(inputs=["a"], targets=NOWHERE),
     "targets` is '/nowhere/x', but there is no such file"),
    (lambda new, c: new().score(["a", "b"], ["c", "d", "e"]),
     "targets` has 3 texts, which is not a multiple of the 2 of `inputs`; give"),
    (lambda new, c: new().export(beam_size=0), "beam_size` is 0 but must be a posit"),
    (lambda new, c: new().export(temperature=-1), "temperature` is -1 but must be a n"),
    (lambda new, c: new().export(checkpoint_step=[7, 8]),
     "checkpoint_step` is [7, 8] but must be the step of one checkpoint")]


def test_python_names_a_wrong_argument_before_it_writes_or_needs_a_checkpoint(
    task, mixture, tmp_path, monkeypatch):
  def new(lengths=None, **kwargs):
    return synthesizer_mtf.MtfModel(**{
        "model_dir": tmp_path, "sequence_length": lengths or LENGTHS, **kwargs})

  monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
  monkeypatch.chdir(ROOT)
  (tmp_path / "lines").write_text("one\ntwo\n")
  case = types.SimpleNamespace(
      task=task, mixture=mixture, lines=str(tmp_path / "lines"))
  for call, said in CALLS:
    gin.clear_config()
    with pytest.raises(checks.Error) as error:
      call(new, case)
    assert said.replace("{folder}", str(tmp_path)) in str(error.value)
    assert "\n" not in str(error.value)
  assert os.listdir(tmp_path) == ["lines"]


def test_tokens_of_a_batch_are_whole_sequences_of_the_lengths_that_count(tmp_path):
  tokens = ("tokens_per_batch", 20)
  assert synthesizer_mtf.MtfModel(
      tmp_path, batch_size=tokens, sequence_length=LENGTHS).batch_size == 2
  made = synthesizer_mtf.MtfModel(tmp_path, batch_size=tokens)
  gin.parse_config("utils.run.sequence_length = {'inputs': 5, 'targets': 4}")
  with made._settled():
    assert made.batch_size == 4


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


def compared(targets, predictions):
  return {"compared": len(targets) + len(predictions)}


def summed(targets, scores):
  return {"summed": len(targets) + len(scores)}


def combined(targets, predictions, aux_values):
  return {"combined": len(targets) + len(predictions) + len(aux_values)}


@pytest.fixture
def measured(monkeypatch, task):
  """Gives metrics to the task."""
  def give(*metrics):
    with_metrics = seqio.TaskRegistry.get(task)
    monkeypatch.setattr(with_metrics, "_metric_fn_constructor_args", metrics)
    for name in [name for name in vars(with_metrics) if name.endswith("metric_fns")]:
      del vars(with_metrics)[name]  # seqio remembers them.

  return give


def test_a_metric_that_gets_other_values_is_refused_and_one_of_texts_is_told(
    task, measured, caplog):
  data_checks.check_metrics(task, None)  # There are none.
  for metrics, given, said in [
      ([compared, summed], "predictions",
       "metric summed takes scores, .* --gin_file=score_eval.gin"),
      ([functools.partial(summed)], "predictions", "metric summed takes scores"),
      ([combined], "predictions", "metric combined takes aux_values"),
      ([combined, summed], "scores", "metric combined takes aux_values"),
      ([compared, combined], "scores", "metrics compared, combined compare predictions"
       ", but .* scores .*eval.gin .*eval_with_score .*score_from_task.gin")]:
    measured(*metrics)
    data_checks.check_metrics(task, None)
    with pytest.raises(checks.Error, match=said):
      data_checks.check_metrics(task, given)
  measured(compared, summed)
  data_checks.check_metrics(task, "scores")
  assert "metric compared takes targets and predictions" in caplog.text
  assert "summed" not in caplog.text


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

  measured(compared)
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
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", "spm.model")  # Another task reads it.
  with pytest.raises(checks.Error, match="`MIXTURE_NAME = 'synth_text_pairs'`"):
    data_checks.check_vocabularies("far", features)
  with pytest.raises(checks.Error, match=f"`it` is '{remote}'.*{offline}.*name a Sent"):
    vocabulary.load("`it`", remote)
  monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "there"})
  assert not checks.unreachable(remote)


def test_a_task_without_the_split_of_an_evaluation_is_named(task, monkeypatch, log):
  other = types.SimpleNamespace(name="other", splits=["train", "test"])
  monkeypatch.setattr(data_checks, "subtasks", lambda name: [
      seqio.TaskRegistry.get(task), other])
  data_checks.check_split("both", "train")
  assert not log.text
  data_checks.check_split("both", "test")
  assert (f"is 'test', which {task} of 'both' does not have: only the others are read"
          in log.text)


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
  monkeypatch.setattr(data_checks, "subtasks", lambda name: [alone])
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
