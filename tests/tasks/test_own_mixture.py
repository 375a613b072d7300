"""Mixtures of the user's own sets."""

import collections

import gin
import pytest
import seqio
from support.task_files import bind
from support.task_files import LENGTHS


@pytest.fixture(autouse=True)
def files(vocabulary, tmp_path):
  """Two sets of pairs, in scopes of gin, and a folder."""
  for name, target in (("news", "the"), ("chat", "that")):
    path = tmp_path / f"{name}.tsv"
    path.write_text("".join(f"{name} {i}\t{target}\n" for i in range(50)))
    gin.parse_config(f"{name}/synthesizer_mtf.tasks.pairs.train = '{path}'")
  return tmp_path


def mixture():
  return seqio.get_mixture_or_task("synth_own_mixture")


@pytest.mark.slow
def test_own_sets_are_mixed_at_their_rates_and_have_their_own_splits(files):
  bind("mixture.rates", {"synth_text_pairs.news": 3.0, "synth_text_pairs.chat": 1})
  vocabulary = mixture().output_features["targets"].vocabulary
  counts = collections.Counter(
      vocabulary.decode(example["targets"].tolist()[:-1])
      for example in mixture().get_dataset(
          LENGTHS, "train", seed=3).take(400).as_numpy_iterator())
  assert set(counts) == {"the", "that"}
  assert counts["the"] == pytest.approx(300, abs=40)
  assert [task.name for task in mixture().tasks] == [
      "synth_text_pairs.chat", "synth_text_pairs.news"]
  assert mixture().num_input_examples("train") == 100
  assert mixture().total_rate == 4
  assert [mixture().get_rate(task) for task in mixture().tasks] == [1, 3]
  gin.parse_config(
      f"news/synthesizer_mtf.tasks.pairs.validation = '{files}/news.tsv'")
  assert [list(task.splits) for task in mixture().tasks] == [
      ["train"], ["train", "validation"]]
  assert set(mixture().splits) == {"train", "validation"}


@pytest.mark.slow
def test_own_sets_are_mixed_with_registered_tasks(tasks_to_read):
  bind("mixture.rates", {"synth_text_pairs.news": 1, "synth_squad": 1})
  rows = list(mixture().get_dataset(
      LENGTHS, "train", seed=3).take(20).as_numpy_iterator())
  vocabulary = mixture().output_features["targets"].vocabulary
  texts = {vocabulary.decode(example["targets"].tolist()[:-1]) for example in rows}
  assert texts == {"the", "It"}

