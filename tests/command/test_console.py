"""Which log lines the command prints."""

import logging

from absl import logging as absl_logging
import pytest
from synthesizer_mtf.trainer import console
from synthesizer_mtf.trainer import stopping


def record(message, level=logging.INFO, path="/site-packages/mesh_tensorflow/ops.py"):
  return logging.LogRecord("tensorflow", level, path, 1, message, (), None)


@pytest.fixture(name="verbosity")
def fixture_verbosity():
  before = absl_logging.get_verbosity()
  absl_logging.set_verbosity(absl_logging.INFO)
  yield absl_logging.set_verbosity
  absl_logging.set_verbosity(before)


@pytest.mark.parametrize("message, shown", [
    ("Variable encoder/block_000/layer_000/SyntheticAttention/R", False),
    ("Graph was finalized.", False),
    ("eval/synth_text_pairs/bleu at step 550: 80.263", True),
    ("Loss for final step: 6.9.", True),
    ("Saving checkpoints for 20 into /tmp/rv/model.ckpt.", True)])
@pytest.mark.usefixtures("verbosity")
def test_only_scores_and_checkpoints_of_other_packages_are_shown(message, shown):
  assert console._is_of_use(record(message)) == shown


@pytest.mark.usefixtures("verbosity")
def test_our_own_lines_and_warnings_except_noise_are_shown():
  assert console._is_of_use(record("step 1 of 2", path=stopping.__file__))
  assert console._is_of_use(record("disk is slow", logging.WARNING))
  assert not console._is_of_use(record(
      "eval_on_tpu ignored because use_tpu is False.", logging.WARNING))


def test_the_flag_verbosity_shows_all_lines_as_they_are(verbosity):
  whole = logging.Formatter("whole %(message)s")
  plain = console._Plain(whole)
  warning = record("slow", logging.WARNING)
  assert plain.format(warning) == "WARNING: slow"
  verbosity(absl_logging.DEBUG)
  assert console._is_of_use(record("Graph was finalized."))
  assert plain.format(warning) == "whole slow"
