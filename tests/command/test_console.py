"""Which log lines the command prints."""

import functools
import logging
import types

from absl import logging as absl_logging
import pytest
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import progress
from synthesizer_mtf.trainer.watching import stopping


def record(message, level=logging.INFO, path="/site-packages/mesh_tensorflow/ops.py"):
  return logging.LogRecord("tensorflow", level, path, 1, message, (), None)


@pytest.fixture(autouse=True)
def verbosity_of_the_command():
  absl_logging.set_verbosity(absl_logging.INFO)


@pytest.mark.parametrize("message, more, shown", [
    ("Graph was finalized.", {}, False),
    ("eval/synth_text_pairs/bleu at step 550: 80.263", {}, True),
    ("Loss for final step: 6.9.", {}, True),
    ("Saving checkpoints for 20 into /tmp/rv/model.ckpt.", {}, True),
    ("step 1 of 2", {"path": stopping.__file__}, True),
    ("encoder: R+V", {"path": stack.__file__}, True),
    ("reads a.tsv", {"path": own_text.__file__}, True),
    ("disk is slow", {"level": logging.WARNING}, True),
    ("eval_on_tpu ignored because use_tpu is False.", {"level": logging.WARNING},
     False),
    *((f"Object was never used:\n<tf.Operation '{name}/Assert'>",
       {"level": logging.ERROR}, shown) for name, shown in (
           ("other", True), ("assert_less_equal", False)))])
def test_scores_checkpoints_our_own_lines_and_warnings_without_noise_are_shown(
    message, more, shown):
  assert console._is_of_use(record(message, **more)) == shown


def test_in_python_each_line_is_printed_once_and_loggers_are_put_back(
    capsys, tmp_path):
  loggers = absl_logging.get_absl_logger(), logging.getLogger("tensorflow")
  def state():
    return [(logger.handlers[:], logger.propagate, logger.level) for logger in loggers]

  before = state()
  own = logging.FileHandler(tmp_path / "own.log")
  for handler in (logging.StreamHandler(), own):
    logging.root.addHandler(handler)
  try:
    with console.shown(), console.shown():
      loggers[0].handle(record("Training R+V", path=stopping.__file__))
      loggers[1].warning("x is deprecated and will be removed in a later version")
      loggers[1].warning("disk is slow")
  finally:
    for handler in logging.root.handlers[-2:]:
      logging.root.removeHandler(handler)
  assert capsys.readouterr().err == "Training R+V\nWARNING: disk is slow\n"
  assert "Training R+V\n" in (tmp_path / "own.log").read_text()
  assert before == state()


def test_a_training_in_a_notebook_is_one_bar_that_changes(monkeypatch, capsys):
  monkeypatch.setattr(console, "in_notebook", lambda: True)
  monkeypatch.setattr(progress, "_PERIOD_OF_BAR", 0.)
  # An exception that another test keeps may hold a bar, below which this one would be.
  monkeypatch.setattr(progress.tqdm, "tqdm", functools.partial(
      progress.tqdm.tqdm, mininterval=0, position=0))
  training = types.SimpleNamespace(last_step=5, step=2, loss=1.25)
  watch = progress.Progress()
  watch.on_start(training)
  for training.step in (3, 5):
    watch.on_step(training)
  watch.on_end(training)
  bar = capsys.readouterr().err
  assert bar.count("\n") == 1 and "2/5" in bar
  assert bar.rpartition("\r")[2].startswith("100%") and "loss 1.25" in bar
  stopped = progress.Progress()
  with pytest.raises(KeyboardInterrupt), stopped.around(training):
    stopped.on_start(training)
    raise KeyboardInterrupt
  assert capsys.readouterr().err.endswith("\n")


def test_the_flag_verbosity_shows_all_lines_as_they_are():
  whole = logging.Formatter("whole %(message)s")
  plain = console._Plain(whole)
  warning = record("slow", logging.WARNING)
  assert plain.format(warning) == "WARNING: slow"
  absl_logging.set_verbosity(absl_logging.DEBUG)
  assert console._is_of_use(record("Graph was finalized."))
  assert plain.format(warning) == "whole slow"


def test_lines_with_results_name_the_split_and_the_files(capsys):
  lines = ["eval/mine/bleu at step 5: 1.000", "eval/perplexity_per_word at step 5: 1",
           "eval/other/bleu at step 5: 1.000", "Saving dict for global step 5: loss",
           "Saving checkpoints for 5 into x."]
  data = {"mine": "test of a.tsv", "other": "test", "": "test"}
  with console.shown():
    for evaluated in {}, data:
      with console.evaluating(evaluated):
        for line in lines:
          logging.getLogger("tensorflow").handle(record(line))
  assert capsys.readouterr().err.splitlines() == lines + [
      f"{lines[0]} (test of a.tsv)", *(f"{line} (test)" for line in lines[1:4]),
      lines[4]]
