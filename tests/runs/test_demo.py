"""Tests of `make demo`, and of the folders that long commands work in."""

import re
import sys
import time

import pytest
from support import checkpoint_files
from support import processes
from support.events import write_events
from synthesizer_mtf.demo import __main__ as demo
from synthesizer_mtf.demo import data
from synthesizer_mtf.demo import name_pairs
from synthesizer_mtf.demo import report
from synthesizer_mtf.demo import stages
from synthesizer_mtf.tasks import english
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.experiments import claims
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import process
from synthesizer_mtf.trainer.checkpoints import complete

ROW = {"attention": "V", "params": 1197824, "steps_per_sec": 7.125,
       "log_perplexity": 4.25, "bleu": 31.46, "accuracy": 12.5}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(process, "POLL_SECONDS", 0.01)


@pytest.mark.slow
def test_text_is_english_prose_on_single_lines_of_which_some_are_held_out():
  train, validation = english.split()
  assert len(train) > 3000 and len(validation) > 200
  assert len({*train, *validation}) == len(train) + len(set(validation))
  assert not any("\n" in paragraph for paragraph in train)
  words = " ".join(train).lower().split()
  assert words.count("the") > len(words) / 30


def test_pairs_hold_names_in_two_languages_and_held_out_names_are_new():
  pairs = dict(name_pairs.pairs())
  assert pairs["Germany"] == "Deutschland"
  assert pairs["German (Austria)"] == "Deutsch (Österreich)"
  assert pairs["Monday"] == "Montag"
  assert not any(source == target or re.search("[\t\n\u00a0\u202f]", source + target)
                 for source, target in pairs.items())
  train, validation = name_pairs.split()
  assert len(train) > 3000 and len(validation) > 300
  assert not {s for s, _ in train} & {s for s, _ in validation}


def test_table_has_a_line_for_each_row_and_columns_in_line():
  other = {**ROW, "attention": "R+V", "bleu": 5.0}
  lines = report.table([ROW, other]).split("\n")
  assert len(lines) == 4 and len({len(line) for line in lines}) == 1
  assert lines[0].split() == ["attention", "params", "steps/sec", "log",
                              "perplexity", "BLEU", "accuracy", "%"]
  assert lines[2].split() == ["V", "1,197,824", "7.12", "4.250", "31.5", "12.5"]
  assert lines[3].split()[0] == "R+V" and lines[3].split()[4] == "5.0"
  # A checkpoint of an optimizer without slots does not tell what was trained.
  assert report.table([{**ROW, "params": None}]).split("\n")[2].split()[1] == "-"


def test_the_latest_step_is_the_step_that_the_launcher_resumes_from(tmp_path):
  assert results.latest_step(tmp_path / "new") == -1
  assert results.num_parameters(tmp_path / "new") is None
  checkpoint_files.save(tmp_path, 4, 8)
  assert results.num_parameters(tmp_path) == 7 * 11 + 2 * 5 * 3
  (tmp_path / "checkpoint").unlink()  # A kill can leave this state.
  assert results.latest_step(tmp_path) == 8
  checkpoint_files.truncate(tmp_path / "model.ckpt-8.index")
  with pytest.raises(complete.DamagedError, match="model.ckpt-8 in .* cannot"):
    results.latest_step(tmp_path)


def test_figures_come_from_the_events_and_from_logs(tmp_path):
  """Log perplexity is negated; speed is the median without the first steps.

  Of a step that was done twice the later loss counts.
  """
  write_events(tmp_path / "eval_text", "neg_log_perplexity", {6: -5.0, 7: -4.5})
  assert results.log_perplexity(tmp_path, 7) == 4.5
  assert results.log_perplexity(tmp_path, 8) is None
  rates = dict(enumerate([1.0] * 10 + [5.0, 6.0, 30.0]))
  write_events(tmp_path, "global_step/sec", rates)
  assert results.steps_per_second(tmp_path) == 6.0
  (tmp_path / "log").write_text("step, tf_loss[7.5][1]\nother\nstep, tf_loss[7][2]\n"
                                "step, tf_loss[6.5][2]\nstep, tf_loss[6][3]\n")
  assert results.losses(tmp_path / "log") == [(1, 7.5), (2, 6.5), (3, 6.0)]


def test_failing_command_shows_the_end_of_its_log(tmp_path):
  command = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
  stage = pipeline.Stage("breaks", command, tmp_path / "log", lambda: True)
  with pytest.raises(process.CommandError, match="(?s)status 3.*why"):
    stage.run()


def test_plan_has_the_stages_in_order(tmp_path):
  plan = stages.Plan(tmp_path, ["V", "R+V"], stages.SCALES["test"])
  assert [stage.title for stage in plan.stages()] == [
      "pre-train V", "perplexity V", "fine-tune V", "evaluate V",
      "pre-train R+V", "perplexity R+V", "fine-tune R+V", "evaluate R+V",
      "decode R+V"]
  assert not any(stage.is_done() for stage in plan.stages())


@pytest.fixture
def no_data(monkeypatch):
  """Replaces the demo's data, because making it takes longer than these tests."""
  monkeypatch.setattr(data, "make", lambda folder: dict.fromkeys(
      ("paragraphs", "held_out_paragraphs", "characters", "pairs",
       "held_out_pairs", "vocabulary"), 1))


@pytest.mark.usefixtures("no_data")
def test_done_stages_are_skipped_and_a_stage_without_a_result_is_an_error(
    tmp_path, monkeypatch):
  def touching(name, made):  # Done when there is a file of its name.
    return pipeline.Stage(name, ["touch", str(tmp_path / made)], tmp_path / "log",
                          (tmp_path / name).exists)

  plan = stages.Plan(tmp_path, ["V"], stages.SCALES["test"])
  all_stages = [touching(name, name) for name in "abc"]
  monkeypatch.setattr(plan, "stages", lambda: all_stages)
  (tmp_path / "a").touch()
  assert demo._run(plan) == 2
  assert demo._run(plan) == 0
  all_stages.append(touching("d", "e"))
  with pytest.raises(process.CommandError, match="d left no result"):
    demo._run(plan)


def test_unknown_attentions_and_a_directory_of_another_size_are_refused(tmp_path):
  with pytest.raises(SystemExit, match="--attention names 'Q'.*r\\+v"):
    demo.main(["--attention", "Q", f"--output_dir={tmp_path}"])
  (tmp_path / "settings.json").write_text('{"pretrain_steps": 1}')
  with pytest.raises(SystemExit, match="remove it or name another"):
    demo.main(["--scale=test", f"--output_dir={tmp_path}"])



def claim_for_long(folder):
  claims.claim(folder, {"steps": 1})
  (folder / "claimed").touch()
  time.sleep(600)


@pytest.mark.slow
def test_a_folder_belongs_to_one_process_until_it_is_killed(tmp_path):
  folder = tmp_path / "new"
  other = processes.start(claim_for_long, folder)
  while not (folder / "claimed").exists():
    assert other.is_alive()
    time.sleep(0.05)
  with pytest.raises(ValueError, match=(
      f"`--output_dir` is '{folder}', where process {other.pid} on .* is at work")):
    claims.claim(folder, {"steps": 1})
  other.kill()
  other.join()
  for _ in range(2):
    claims.claim(folder, {"steps": 1})
