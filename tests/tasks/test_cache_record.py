"""A task reads a cache only with the vocabulary and texts that made the cache."""

import gin
import pytest
import seqio
from support import caches
from support.task_files import bind
from synthesizer_mtf.tasks import cache_record
from synthesizer_mtf.tools import train_vocabulary

LENGTHS = {"inputs": 32, "targets": 16}

pytestmark = pytest.mark.usefixtures("clean_tasks")


@pytest.fixture(scope="module", name="other_model")
def fixture_other_model(tmp_path_factory):
  path = tmp_path_factory.mktemp("other") / "spm.model"
  path.write_bytes(train_vocabulary.train(
      ["other words make another vocabulary"], 22, character_coverage=1.))
  return str(path)


@pytest.fixture(name="task")
def fixture_task(sentencepiece_model, tmp_path, monkeypatch):
  """A task on the user's pairs, with a cached training split."""
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
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


def test_a_cache_with_its_vocabulary_is_read(task):
  cache_record.write(task, task.cache_dir)
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


def test_where_the_vocabulary_lies_does_not_matter(
    task, sentencepiece_model, tmp_path):
  cache_record.write(task, task.cache_dir)
  with open(sentencepiece_model, "rb") as f:
    (tmp_path / "moved.model").write_bytes(f.read())
  bind("vocabulary.sentencepiece_model", str(tmp_path / "moved.model"))
  assert len(read(task)) == 2


def test_an_old_cache_with_another_vocabulary_is_refused_by_its_examples(
    task, other_model):
  bind("vocabulary.sentencepiece_model", other_model)
  with pytest.raises(ValueError, match="another vocabulary: there b'the statement'"):
    read(task)


def test_an_old_cache_that_agrees_is_read_with_a_warning(task, caplog):
  assert len(read(task)) == 2
  assert "has no record of what it was made with" in caplog.text


def test_a_split_that_is_not_cached_is_named(task):
  with pytest.raises(ValueError, match="'synth_text_pairs' has no split 'validation'"):
    read(task, "validation")


def test_a_cache_of_other_texts_of_the_same_files_is_refused(task, monkeypatch):
  """Examples are PersonaChat with another history, and another key of JSON lines."""
  monkeypatch.setattr(task.source, "made_with", lambda: {"history": 2}, raising=False)
  cache_record.write(task, task.cache_dir)
  monkeypatch.setattr(task.source, "made_with", lambda: {"history": 0})
  with pytest.raises(ValueError, match="another history: 2, and now it is 0"):
    read(task)


@pytest.mark.parametrize("name, parameter, before, after", [
    ("synth_text_lm", "text.key", "text", "body"),
    ("synth_personachat", "personachat.history", None, 0),
    ("synth_personachat", "personachat.persona", "none_original", "both_original"),
])
def test_a_record_says_what_is_read_of_the_users_files(
    name, parameter, before, after, sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  task = seqio.TaskRegistry.get(name)
  found = []
  for value in (before, after):
    bind(parameter, value)
    found.append(cache_record.made_with(task))
  assert found[0] != found[1]
  assert gin.query_parameter(f"synthesizer_mtf.tasks.{parameter}") == after


def test_a_record_tells_the_classes_and_the_data_set(sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  made = cache_record.made_with(seqio.TaskRegistry.get("synth_imdb_reviews_encoder"))
  assert made["vocabulary of targets"] == "classes neg, pos"
  assert made["data set"] == "imdb_reviews/plain_text:1.0.0"
