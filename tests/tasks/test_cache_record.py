"""A task reads a cache only with the vocabulary and texts that made the cache."""

import shutil

import pytest
import seqio
from support import caches
from support.task_files import bind
from synthesizer_mtf.tasks import cache_record
from synthesizer_mtf.tools.base import vocabularies

LENGTHS = {"inputs": 32, "targets": 16}

pytestmark = pytest.mark.usefixtures("vocabulary")


@pytest.fixture(scope="module", name="other_model")
def fixture_other_model(tmp_path_factory):
  path = tmp_path_factory.mktemp("other") / "spm.model"
  path.write_bytes(vocabularies.train(
      ["other words make another vocabulary"], 22, character_coverage=1.))
  return str(path)


@pytest.fixture(name="task")
def fixture_task(tmp_path, monkeypatch):
  """A task on the user's pairs, with a cached training split."""
  (tmp_path / "a.tsv").write_text("the statement\teins\nthe object\tzwei\n")
  bind("pairs.train", str(tmp_path / "a.tsv"))
  task = seqio.TaskRegistry.get("synth_text_pairs")
  monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
  monkeypatch.setattr(task, "_cache_dir", None)
  monkeypatch.setattr(task, "_stats", {})
  caches.write(task, "train", tmp_path / "cache")
  return task


def read(task, split="train"):
  dataset = task.get_dataset(LENGTHS, split, use_cached=True, shuffle=False)
  return [example["inputs"].tolist() for example in dataset.as_numpy_iterator()]


def test_a_cache_with_its_vocabulary_is_read_wherever_the_vocabulary_lies(
    task, sentencepiece_model, tmp_path):
  cache_record.write(task, task.cache_dir)
  shutil.copy(sentencepiece_model, tmp_path / "moved.model")
  bind("vocabulary.sentencepiece_model", str(tmp_path / "moved.model"))
  chosen = task.output_features["inputs"].vocabulary
  assert read(task) == [
      [*chosen.encode(text), 1] for text in ("the statement", "the object")]


def test_a_cache_that_was_made_with_another_vocabulary_is_refused(
    task, other_model):
  cache_record.write(task, task.cache_dir)
  bind("vocabulary.sentencepiece_model", other_model)
  with pytest.raises(ValueError) as error:
    read(task)
  for part in (task.cache_dir, "'synth_text_pairs'", "another vocabulary of inputs",
               "SHA-256", "tasks.cache", "use_cached"):
    assert part in str(error.value)


def test_an_old_cache_with_another_vocabulary_is_refused_by_its_examples(
    task, other_model):
  bind("vocabulary.sentencepiece_model", other_model)
  with pytest.raises(ValueError, match="another vocabulary: there b'the statement'"):
    read(task)


def test_an_old_cache_that_agrees_is_read_with_a_warning(task, caplog):
  assert len(read(task)) == 2
  assert "has no record of what it was made with" in caplog.text
  # A split that is not cached is named.
  with pytest.raises(ValueError, match="'synth_text_pairs' has no split 'validation'"):
    read(task, "validation")


def test_a_cache_of_other_texts_of_the_same_files_is_refused(task, monkeypatch):
  """Examples are PersonaChat with another history, and another key of JSON lines."""
  monkeypatch.setattr(task.source, "made_with", lambda: {"history": 2}, raising=False)
  cache_record.write(task, task.cache_dir)
  monkeypatch.setattr(task.source, "made_with", lambda: {"history": 0})
  with pytest.raises(ValueError, match="another history: 2, and now it is 0"):
    read(task)


def test_a_record_says_what_is_read_of_the_users_files():
  for name, parameter, before, after in [
      ("synth_text_lm", "text.key", "text", "body"),
      ("synth_personachat", "personachat.history", None, 0),
      ("synth_personachat", "personachat.persona", "none_original", "both_original")]:
    task = seqio.TaskRegistry.get(name)
    bind(parameter, before)
    first = cache_record.made_with(task)
    bind(parameter, after)
    assert cache_record.made_with(task) != first


def test_a_record_tells_the_classes_and_the_data_set():
  made = cache_record.made_with(seqio.TaskRegistry.get("synth_imdb_reviews_encoder"))
  assert made["vocabulary of targets"] == "classes neg, pos"
  assert made["data set"] == "imdb_reviews/plain_text:1.0.0"
