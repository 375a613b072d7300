"""Checkpoints are evaluated while a model trains; the best is kept, patience stops."""

import json
import re

import pytest
from support import events
from support import in_process
from synthesizer_mtf.tools import best_checkpoint
from synthesizer_mtf.trainer import validation

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
  values = events.scalars(folder / "eval_synth_text_pairs_validation")
  assert values["loss"] == pytest.approx(-values["neg_log_perplexity"])
  best_checkpoint.main([str(folder), "--metric=neg_log_perplexity"])
  *_, last = capsys.readouterr().out.strip().splitlines()
  assert last.startswith("The best by eval_synth_text_pairs_validation: neg_log")
  for path in (folder / "best").iterdir():
    path.unlink()
  assert "lacks model.ckpt-2, the best by sequence_accuracy" in train(command)


@pytest.mark.usefixtures("parsed_flags")
@pytest.mark.parametrize("binding, message", [
    ("train_and_eval.patience = 0", "`train_and_eval.patience` is 0 but must be"),
    ("train_and_eval.every_steps = 1", "every_steps` is 1, but `utils.run.save_"),
    ("train_and_eval.metric = 'blue'", "'blue', which no task has; .*'bleu'"),
    ("train_and_eval.split = 'dev'", "`train_and_eval.split` is 'dev'")])
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
