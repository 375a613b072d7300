"""Tests of dialogue generation on files in ParlAI's format, and its metrics."""

import gzip
import math
import sys
import types

import nltk.corpus
import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from support.task_files import texts
from synthesizer_mtf.tasks import dialogue_metrics

pytestmark = pytest.mark.usefixtures("clean_tasks")

NAME = "synth_personachat"
DIALOGUES = (
    "1 your persona: i like to ski .\n"
    "2 your persona: i have two dogs .\n"
    "3 hi , how are you ?\tgreat , just back .\t\tno .|great , just back .\n"
    "4 lucky you .\twhere do you live ?\t\tyes .|where do you live ?\n"
    "5 __SILENCE__\thello ?\n"
    "1 your persona: i cook .\n"
    "2 good evening !\thi .\t\thi .|bye .\n")
PERSONA = "persona: i like to ski . i have two dogs ."
EXPECTED = [
    (f"personachat utterance: hi , how are you ? {PERSONA}",
     "great , just back ."),
    (f"personachat utterance: lucky you . {PERSONA} history: great , just back "
     ". | hi , how are you ?", "where do you live ?"),
    (f"personachat utterance: __SILENCE__ {PERSONA} history: where do you live "
     "? | lucky you . | great , just back . | hi , how are you ?", "hello ?"),
    ("personachat utterance: good evening ! persona: i cook .", "hi ."),
]


@pytest.fixture(autouse=True)
def folder(clean_tasks, sentencepiece_model, tmp_path):
  """A folder with the three splits; the test split is compressed."""
  dialogue_metrics._wordnet.cache_clear()
  dialogue_metrics._warn_of_no_vectors.cache_clear()
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  bind("personachat.directory", str(tmp_path))
  (tmp_path / "train_self_original.txt").write_text(DIALOGUES)
  (tmp_path / "valid_self_original.txt").write_text("1 a\tb\n")
  with gzip.open(tmp_path / "test_self_original.txt.gz", "wt") as f:
    f.write("1 c\td\r\n")
  yield tmp_path
  dialogue_metrics._wordnet.cache_clear()


def test_each_reply_is_an_example_with_persona_and_history():
  assert texts(NAME) == EXPECTED


def test_splits_are_parlais_files():
  assert texts(NAME, "validation") == [("personachat utterance: a", "b")]
  assert texts(NAME, "test") == [("personachat utterance: c", "d")]
  source = seqio.TaskRegistry.get(NAME).source
  assert [source.num_input_examples(s) for s in source.splits] == [4, 1, 1]


@pytest.mark.parametrize("history, expected", [
    (0, [EXPECTED[0][0], f"personachat utterance: lucky you . {PERSONA}"]),
    (1, [EXPECTED[0][0], f"personachat utterance: lucky you . {PERSONA} "
         "history: great , just back ."]),
])
def test_history_limits_the_utterances_before_the_last_one(history, expected):
  bind("personachat.history", history)
  assert [inputs for inputs, _ in texts(NAME)[:2]] == expected


def test_other_personas_are_other_files(folder):
  (folder / "train_both_revised.txt").write_text(
      "1 your persona: i ski .\n2 partner's persona: i cook .\n"
      "3 hi\tho\n1 so\tlo\n")
  bind("personachat.persona", "both_revised")
  assert texts(NAME) == [
      ("personachat utterance: hi persona: i ski . partner's persona: i cook .",
       "ho"), ("personachat utterance: so", "lo")]


def test_line_without_reply_is_context():
  """As in ParlAI's format."""
  from synthesizer_mtf.tasks import personachat
  lines = ["1 i am here .", "2 hi\tho", "1 bye", "1 x\ty"]
  assert list(personachat.parse(lines)) == [
      ("personachat utterance: hi history: i am here .", "ho"),
      ("personachat utterance: x", "y")]


def test_folder_comes_from_the_environment_too(folder, monkeypatch):
  bind("personachat.directory", None)
  monkeypatch.setenv("SYNTHESIZER_MTF_PERSONACHAT", f"{folder}/")
  assert texts(NAME) == EXPECTED


def test_long_examples_are_cut_and_not_dropped(capfd):
  found = examples(NAME, lengths={"inputs": 24, "targets": 4})
  assert [e["targets_pretokenized"].decode() for e in found] == [
      targets for _, targets in EXPECTED]
  assert max(len(e["inputs"]) for e in found) == 24
  assert max(len(e["targets"]) for e in found) == 4
  assert all(e["inputs"][-1] == e["targets"][-1] == 1 for e in found)
  assert "Cut to sequence_length {'inputs': 24" in capfd.readouterr().err


@pytest.mark.parametrize("content, message", [
    ("1 a\tb\nhello\tyou\n", "line 2: 'hello.tyou' does not begin with a"),
    ("\n1 a\tb\n2 c\t \t\tx|y\n", "line 3: the utterance or the reply is e"),
    ("1 a\tb\n2 \tb\n", "line 2: the utterance or the reply is empty"),
    ("1 your persona: i ski .\n2 a\n", "train_self_original.txt' has no repl"),
    ("", "holds no text"),
])
def test_bad_files_are_named_with_the_line(content, message, folder):
  (folder / "train_self_original.txt").write_text(content)
  with pytest.raises(ValueError, match=message) as error:
    texts(NAME)
  assert "train_self_original.txt'" in str(error.value)


@pytest.mark.parametrize("parameter, value, message", [
    ("directory", None, "personachat.directory` or the environment variable S"),
    ("directory", "/no/such", "'/no/such', which is not a folder"),
    ("persona", "none_original", "has no 'train_none_original.txt'; put it"),
    ("history", -1, "personachat.history` is -1; it must be"),
])
def test_bad_parameters_are_named(parameter, value, message):
  bind(f"personachat.{parameter}", value)
  with pytest.raises(ValueError, match=message):
    texts(NAME)


@pytest.mark.parametrize("text, expected", [
    ("hi  there \n", "hi there"), ("", ""), (" \n", ""),
    ("a\tb \u2047 c", "a b \u2047 c"),
])
def test_predictions_become_one_line(text, expected):
  assert seqio.TaskRegistry.get(NAME).postprocess_fn(text) == expected


TARGETS = ["a b c d e", "f g h i"]
PREDICTIONS = ["a b c d x", "f g h i"]


def test_overlap_metrics_by_hand():
  """All n-grams without x are right, and no reply is too short."""
  scores = dialogue_metrics.overlap(TARGETS, PREDICTIONS)
  # No n-gram is in both targets: all weigh the same.
  partly = 10 * (4 / 5 + 3 / 4 + 2 / 3 + 1 / 2) / 4
  assert scores == pytest.approx({
      "bleu1": 100 * 8 / 9,
      "bleu4": 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** (1 / 4),
      "rougeL": 100 * (4 / 5 + 1) / 2,
      "cider": 100 * (partly + 10) / 2}, rel=1e-6)


def test_short_replies_are_penalized():
  scores = dialogue_metrics.overlap(["a b c d e f"], ["a b c"])
  f_score = (1 + 1.2**2) * 1 * 0.5 / (0.5 + 1.2**2 * 1)
  assert scores["bleu1"] == pytest.approx(100 * math.exp(1 - 6 / 3), rel=1e-6)
  assert scores["rougeL"] == pytest.approx(100 * f_score)


def test_empty_replies_score_nothing():
  scores = dialogue_metrics.overlap(TARGETS, ["", ""])
  assert scores == pytest.approx(
      {"bleu1": 0, "bleu4": 0, "rougeL": 0, "cider": 0}, abs=1e-6)


class FakeWordNet:
  """Replaces WordNet; it knows only that big and grand are synonyms."""

  def synsets(self, word):
    if word not in ("big", "grand"):
      return []
    lemmas = [types.SimpleNamespace(name=lambda w=w: w)
              for w in ("big", "grand")]
    return [types.SimpleNamespace(lemmas=lambda: lemmas)]


def test_meteor_by_hand_with_stems_and_synonyms(monkeypatch):
  """One chunk of two matches has the penalty 0.5 (1/2)^3. The second pair has none."""
  monkeypatch.setattr(nltk.corpus, "wordnet", FakeWordNet())
  scores = dialogue_metrics.meteor(
      ["grand dogs", "a b"], ["big dog", "c"])
  assert scores == pytest.approx({"meteor": 100 * (1 - 0.5 / 8 + 0) / 2})


def test_meteor_without_wordnet_is_left_out_with_one_warning(
    monkeypatch, caplog):
  def synsets(word):
    raise LookupError(word)
  monkeypatch.setattr(
      nltk.corpus, "wordnet", types.SimpleNamespace(synsets=synsets))
  for _ in range(2):
    assert not dialogue_metrics.meteor(TARGETS, PREDICTIONS)
  said = [r.getMessage() for r in caplog.records if "METEOR" in r.getMessage()]
  assert len(said) == 1
  assert "nltk.downloader wordnet" in said[0] and "NLTK_DATA" in said[0]


@pytest.fixture
def vectors(tmp_path):
  path = tmp_path / "glove.txt"
  path.write_text("a 1 0\nb 0 1\nc 2 2\ndo 3 0\nn't 0 4\n")
  bind("dialogue_metrics.word_vectors", str(path))
  return path


@pytest.mark.parametrize("target, prediction, cosine", [
    ("a b", "a", 1 / math.sqrt(2)),
    ("a", "b", 0),
    ("b a", "c c c", 1),
    ("don't", "do n't", 1),  # The words of the Penn Treebank.
    ("zzz", "a", 6 / math.hypot(6, 7)),  # The mean vector is (6, 7) / 5.
    ("a", "", 0),
])
def test_embedding_average_by_hand(target, prediction, cosine, vectors):
  scores = dialogue_metrics.embedding_average([target], [prediction])
  assert scores == pytest.approx({"embedding_average": 100 * cosine})


def test_embedding_average_is_a_mean_and_names_words_without_vector(
    vectors, caplog):
  scores = dialogue_metrics.embedding_average(["a", "q"], ["a", "q"])
  assert scores == pytest.approx({"embedding_average": 100})
  assert "no vector for 1 words, which count as its mean: q" in caplog.text


@pytest.mark.parametrize("content", [
    "5 2\na 1 0\nb 0 1\nc 2 2\ndo 3 0\nn't 0 4 \n",  # As word2vec writes it.
    "a 1 0\nb 0 1\n. . . 2 2\nat name@site 3 0\nn't 0 4\n",  # As in glove.840B.
])
def test_headers_and_words_with_spaces_do_not_change_other_vectors(
    content, vectors):
  vectors.write_text(content)
  found, mean = dialogue_metrics._read_vectors(str(vectors), {"a", "n't"})
  assert {word: list(v) for word, v in found.items()} == {
      "a": [1, 0], "n't": [0, 4]}
  assert list(mean) == [6 / 5, 7 / 5]


@pytest.mark.parametrize("content, message", [
    ("a 1 0\nb 7 1 0\n", "line 2: 3 numbers after the word, but 2 needed"),
    ("a 1 0\nb 1\n", "line 2: 1 numbers after the word, but 2 needed"),
    ("a 1 0\nb 1 x\n", "line 2: not a word and numbers"),
    ("a\n", "line 1: 0 numbers after the word"),
    ("", "holds no text"),
])
def test_bad_word_vectors_are_named_with_their_line(content, message, vectors):
  vectors.write_text(content)
  with pytest.raises(ValueError, match=message) as error:
    dialogue_metrics.embedding_average(["a"], ["b"])
  assert str(vectors) in str(error.value)


def test_embedding_average_without_vectors_is_left_out_with_one_warning(caplog):
  for _ in range(2):
    assert not dialogue_metrics.embedding_average(TARGETS, PREDICTIONS)
  said = [r.getMessage() for r in caplog.records
          if "embedding average" in r.getMessage()]
  assert len(said) == 1
  assert "dialogue_metrics.word_vectors` in gin" in said[0]


def test_missing_word_vectors_are_known_before_decoding():
  bind("dialogue_metrics.word_vectors", "/no/such.txt")
  task = seqio.TaskRegistry.get(NAME)
  assert task.postprocess_fn("hi") == "hi"
  with pytest.raises(ValueError, match="word_vectors.*'/no/such.txt', but"):
    task.postprocess_fn("hi", example={}, is_target=True)


@pytest.mark.parametrize("module", [
    "pycocoevalcap.cider.cider", "nltk.corpus"])
def test_missing_package_names_the_extra_before_decoding(module, monkeypatch):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ValueError) as error:
    seqio.TaskRegistry.get(NAME).postprocess_fn("hi", is_target=True)
  package, message = module.split(".")[0], str(error.value)
  assert f"need {package}, which is not installed" in message
  assert "pip install '.[dialogue]' in its checkout" in message
