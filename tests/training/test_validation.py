"""Checkpoints are evaluated while a model trains; the best is kept, patience stops."""

import functools
import json
import re

import gin
import pytest
import seqio
from support import checkpoint_files
from support import events
from support import in_process
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools import best_checkpoint
from synthesizer_mtf.trainer import answers
from synthesizer_mtf.trainer import arguments
from synthesizer_mtf.trainer import unknown_pieces
from synthesizer_mtf.trainer import validation
import tensorflow.compat.v1 as tf


@gin.configurable
def inputs_alone(sequence_length, vocabulary, dataset_split):
  del sequence_length, vocabulary, dataset_split
  data = tf.data.Dataset.from_tensors({"inputs": [7, 1]})
  return [("alone", lambda: data, None, [])]


METRIC = "train_and_eval.metric = 'sequence_accuracy'"  # 0 for so small a model.
FILES = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
         "learning_rate_schedules/constant_0_001.gin", "train_and_eval.gin"]
BINDINGS = [METRIC, "train_and_eval.patience = 1", "utils.run.keep_checkpoint_max = 1",
            "utils.run.save_checkpoints_steps = 2", "utils.run.train_steps = 40"]


@pytest.fixture(scope="module")
def command(tmp_path_factory, sentencepiece_model):
  return in_process.Command(tmp_path_factory.mktemp("validation"), sentencepiece_model)


def train(command, *bindings):
  return command.run("model", *FILES, bindings=[*BINDINGS, *bindings])


@pytest.mark.usefixtures("parsed_flags")
def test_the_best_checkpoint_stays_and_patience_ends_the_training(
    command, capsys):
  folder = command.folder / "model"
  assert not train(command)
  record = json.loads((folder / "validation.json").read_text())
  assert [each["step"] for each in record["evaluations"]] == [2, 4]
  assert record["best"]["checkpoint"] == "best/model.ckpt-2"
  assert record["stopped_at"] == validation.stopped_at(str(folder)) == 4
  assert {path.stem for path in folder.glob("model.ckpt-*.index")} == {"model.ckpt-4"}
  assert (folder / "best/model.ckpt-2.index").exists()
  assert not train(command)  # There is nothing to train.
  assert json.loads((folder / "validation.json").read_text()) == record
  assert not train(command, "utils.run.train_steps = 4")  # So patience ended nothing.
  assert json.loads((folder / "validation.json").read_text()) == {
      **record, "stopped_at": None}
  values = events.scalars(folder / "eval_synth_text_pairs_validation")
  assert values["loss"] == pytest.approx(-values["neg_log_perplexity"])
  best_checkpoint.main([str(folder), "--metric=neg_log_perplexity"])
  *_, last = capsys.readouterr().out.strip().splitlines()
  assert last.startswith("The best by eval_synth_text_pairs_validation: neg_log")
  for path in (folder / "best").glob("*.data-*"):
    path.unlink()
  assert "lacks model.ckpt-2, the best by sequence_accuracy" in train(command)


@pytest.mark.usefixtures("parsed_flags")
@pytest.mark.parametrize("binding, message", [
    ("train_and_eval.patience = 0", "`train_and_eval.patience` is 0 but must be"),
    ("train_and_eval.every_steps = 1", "every_steps` is 1, but `utils.run.save_"),
    ("train_and_eval.metric = 'blue'", "'blue', which no task has; .*'bleu'"),
    ("train_and_eval.split = 'dev'", "`train_and_eval.split` is 'dev'"),
    ("mesh_eval_dataset_fn.pack = True", "pack` is True, but `train_and_eval.metric`"),
    ("train_and_eval.eval_dataset_fn = @inputs_alone", "'alone', which has no ta")])
def test_a_wrong_parameter_is_one_sentence_before_any_step(command, binding, message):
  assert re.search(message, command.run(
      "wrong", *FILES, bindings=[*BINDINGS, binding]))


def record(folder, *values, greater_is_better=True):
  found = validation.Record(str(folder), "bleu", greater_is_better)
  for number, value in enumerate(values):
    found.add(10 * number, value, {"task/bleu": value})
  return found


def test_the_first_of_equal_values_is_the_best(tmp_path):
  assert record(tmp_path, 1.0, 3.0, 3.0, 2.0).best["step"] == 10
  assert record(tmp_path, 1.0, 3.0, 3.0, 2.0).since_best == 2
  assert record(tmp_path, 2.0, 1.0, 3.0, greater_is_better=False).best["step"] == 10
  assert record(tmp_path).best is None


def test_a_score_that_is_not_a_number_is_never_the_best(tmp_path):
  nan = float("nan")
  for greater, best in ((True, 30), (False, 20)):
    found = record(tmp_path, nan, nan, 1.0, 2.0, nan, greater_is_better=greater)
    assert (found.best["step"], found.since_best) == (best, 4 - best // 10)
    assert best_checkpoint.best({
        each["step"]: each["value"] for each in found.evaluations}, not greater) == best


def test_the_end_by_patience_is_forgotten_when_training_goes_on(tmp_path):
  assert validation.stopped_at(str(tmp_path)) is None
  found = record(tmp_path, 1.0)
  found.write(stopped_at=20)
  assert validation.stopped_at(str(tmp_path)) == 20
  again = record(tmp_path)
  again.forget_after(-1)
  again.correct(None)
  assert validation.stopped_at(str(tmp_path)) is None
  assert json.loads((tmp_path / "validation.json").read_text())["best"] is None


@pytest.mark.parametrize("metric, greater, warns", [
    ("edit_distance", True, True), ("task/perplexity_per_word", True, True),
    ("edit_distance", False, False), ("neg_log_perplexity", True, False),
    ("bleu", True, False), ("closest", True, False)])
def test_the_greatest_of_what_should_be_small_is_warned_of(
    metric, greater, warns, caplog):
  chosen = validation.Validation(None, metric, greater, None, None, "validation")
  chosen._warn_of_low()
  assert ("greatest value is the best" in caplog.text) == warns


def test_evaluations_after_the_step_to_continue_from_do_not_count(tmp_path):
  found = record(tmp_path, 1.0, 2.0, 3.0)
  found.forget_after(10)
  assert found.best["step"] == found.last == 10 and not found.has(20)


def test_another_metric_in_the_same_folder_is_an_error(tmp_path):
  record(tmp_path, 1.0).write()
  assert record(tmp_path).has(0)
  with pytest.raises(ValueError, match="'loss', but .* by 'bleu'; keep that metric"):
    validation.Record(str(tmp_path), "loss")
  (tmp_path / "validation.json").write_text("{")
  with pytest.raises(ValueError, match="cannot be read"):
    record(tmp_path)


def model(folder, *bindings):
  return synthesizer_mtf.MtfModel(
      model_dir=str(folder), tpu=None, batch_size=4, extra_gin_bindings=[*bindings],
      sequence_length={"inputs": 8, "targets": 6})


def replace(monkeypatch, name, function):
  """Replaces a method of T5's class, which ours calls."""
  stock = synthesizer_mtf.MtfModel.__base__
  original = getattr(stock, name)
  monkeypatch.setattr(stock, name, functools.wraps(original)(
      lambda self, *_, **__: function(self)))


def test_python_has_the_validation_of_its_argument_and_not_of_the_model_to_start_from(
    tmp_path, monkeypatch):
  monkeypatch.setattr(unknown_pieces, "log", lambda *_: None)
  seen = []
  replace(monkeypatch, "train", lambda self: seen.append(
      [gin_files.bound(f"train_and_eval.{name}", None)
       for name in ("eval_dataset_fn", "metric", "patience")]))
  checkpoint_files.save(tmp_path, 4)
  (tmp_path / "operative_config.gin").write_text(
      "import t5.models\ntrain_and_eval.eval_dataset_fn = @mesh_eval_dataset_fn\n"
      "train_and_eval.metric = 'bleu'\ntrain_and_eval.patience = 7\n")
  start = "synth_text_pairs", 2, str(tmp_path)
  model(tmp_path / "new").finetune(*start)
  model(tmp_path / "new").finetune(*start, validation={"patience": 3})
  model(tmp_path / "new").train("synth_text_pairs", 2)
  assert seen[0][0] is seen[2][0] is None and seen[1][0] is not None
  assert seen[1][1:] == [None, 3]  # The metric is that of no binding.
  for wrong, said in (("bleu", "`validation` is 'bleu' but must be a dict"),
                      ({"metrics": "bleu"}, "names 'metrics', .* one of metric,")):
    with pytest.raises(ValueError, match=said):
      model(tmp_path / "new").train("synth_text_pairs", 2, validation=wrong)
  with checks.calling(arguments.names("train")):
    with pytest.raises(ValueError, match=r"`validation\['patience'\]` is 0 but must"):
      validation.chosen(patience=0)


def test_python_gives_the_answers_that_the_bindings_of_the_model_ask_for(
    tmp_path, monkeypatch):
  seen = []

  def predict(self):
    self.estimator(seqio.ByteVocabulary())
    seen.append((answers.bound(), gin_files.bound("infer_model.decode_fn", None)))

  replace(monkeypatch, "predict", predict)
  (tmp_path / "lines").write_text("one\n")
  gin_files.parse(["models/laptop.gin"], ["num_layers = 1"])
  for bindings in (["synthesizer_answers.number = 2"], []):
    model(tmp_path, *bindings).predict(str(tmp_path / "lines"), str(tmp_path / "out"))
  assert seen[0][0] == 2 and seen[0][1].__module__ == answers.__name__
  assert seen[1] == (None, None)
