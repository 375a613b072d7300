"""Tests of dialogue generation on files in ParlAI's format, and its metrics."""

import gzip
import math
import sys
import types

import nltk.corpus
import pytest
import seqio
from support.task_files import bind
from support.task_files import texts
from synthesizer_mtf.tasks import dialogue_metrics

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
def folder(vocabulary, tmp_path):
  """A folder with the three splits; the test split is compressed."""
  dialogue_metrics._warn_of_no_wordnet.cache_clear()
  dialogue_metrics._warn_of_no_vectors.cache_clear()
  bind("personachat.directory", str(tmp_path))
  (tmp_path / "train_self_original.txt").write_text(DIALOGUES)
  (tmp_path / "valid_self_original.txt").write_text("1 a\tb\n")
  (tmp_path / "test_self_original.txt.gz").write_bytes(gzip.compress(b"1 c\td\r\n"))
  yield tmp_path
  dialogue_metrics._warn_of_no_wordnet.cache_clear()


def test_each_reply_is_an_example_with_persona_and_history(folder, monkeypatch):
  assert texts(NAME) == EXPECTED
  for history, before in ((0, ""), (1, " history: great , just back .")):
    bind("personachat.history", history)
    assert [inputs for inputs, _ in texts(NAME)[:2]] == [
        EXPECTED[0][0], f"personachat utterance: lucky you . {PERSONA}{before}"]
  bind("personachat.history", None)
  bind("personachat.directory", None)
  monkeypatch.setenv("SYNTHESIZER_MTF_PERSONACHAT", f"{folder}/")
  assert texts(NAME) == EXPECTED


def test_splits_are_parlais_files():
  assert texts(NAME, "validation") == [("personachat utterance: a", "b")]
  assert texts(NAME, "test") == [("personachat utterance: c", "d")]
  source = seqio.TaskRegistry.get(NAME).source
  assert [source.num_input_examples(s) for s in source.splits] == [4, 1, 1]


def test_other_personas_are_other_files(folder):
  (folder / "train_both_revised.txt").write_text(
      "1 your persona: i ski .\n2 partner's persona: i cook .\n"
      "3 hi\tho\n1 so\tlo\n")
  bind("personachat.persona", "both_revised")
  assert texts(NAME) == [
      ("personachat utterance: hi persona: i ski . partner's persona: i cook .",
       "ho"), ("personachat utterance: so", "lo")]


def test_a_line_without_a_reply_is_context(folder):
  """As in ParlAI's format."""
  (folder / "train_self_original.txt").write_text(
      "1 i am here .\n2 hi\tho\n1 bye\n1 x\ty\n")
  assert texts(NAME) == [("personachat utterance: hi history: i am here .", "ho"),
                         ("personachat utterance: x", "y")]


def test_bad_files_are_named_with_the_line(folder):
  for content, message in [
      ("1 a\tb\nhello\tyou\n", "line 2: 'hello.tyou' does not begin with a"),
      ("\n1 a\tb\n2 c\t \t\tx|y\n", "line 3: the utterance or the reply is e"),
      ("1 a\tb\n2 \tb\n", "line 2: the utterance or the reply is empty"),
      ("1 your persona: i ski .\n2 a\n", "has no repl"),
      ("", "holds no text")]:
    (folder / "train_self_original.txt").write_text(content)
    with pytest.raises(ValueError, match=f"train_self_original.txt'.*{message}"):
      texts(NAME)


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


def test_predictions_become_one_line():
  for text, expected in (("hi  there \n", "hi there"), ("", ""), (" \n", ""),
                         ("a\tb \u2047 c", "a b \u2047 c")):
    assert seqio.TaskRegistry.get(NAME).postprocess_fn(text) == expected


TARGETS = ["a b c d e", "f g h i"]
PREDICTIONS = ["a b c d x", "f g h i"]


def test_overlap_metrics_by_hand():
  """All n-grams without x are right."""
  scores = dialogue_metrics.overlap(TARGETS, PREDICTIONS)
  # No n-gram is in both targets: all weigh the same.
  partly = 10 * (4 / 5 + 3 / 4 + 2 / 3 + 1 / 2) / 4
  assert scores == pytest.approx({
      "bleu1": 100 * 8 / 9,
      "bleu4": 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** (1 / 4),
      "rougeL": 100 * (4 / 5 + 1) / 2,
      "cider": 100 * (partly + 10) / 2}, rel=1e-6)
  # A brevity penalty, and the F score with beta = 1.2.
  short = dialogue_metrics.overlap(["a b c d e f"], ["a b c"])
  assert short["bleu1"] == pytest.approx(100 * math.exp(1 - 6 / 3), rel=1e-6)
  assert short["rougeL"] == pytest.approx(
      100 * (1 + 1.2**2) * 1 * 0.5 / (0.5 + 1.2**2 * 1))
  assert dialogue_metrics.overlap(TARGETS, ["", ""]) == pytest.approx(
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


def test_embedding_average_by_hand(vectors, caplog):
  for target, prediction, cosine in [
      ("a b", "a", 1 / math.sqrt(2)), ("a", "b", 0), ("b a", "c c c", 1), ("a", "", 0),
      ("don't", "do n't", 1),  # The words of the Penn Treebank.
      ("zzz", "a", 6 / math.hypot(6, 7))]:  # The mean vector is (6, 7) / 5.
    scores = dialogue_metrics.embedding_average([target], [prediction])
    assert scores == pytest.approx({"embedding_average": 100 * cosine})
  assert "no vector for 1 words, which count as its mean: zzz" in caplog.text
  scores = dialogue_metrics.embedding_average(["a", "a"], ["a", "b"])
  assert scores == pytest.approx({"embedding_average": 50})


def test_headers_and_words_with_spaces_do_not_change_other_vectors(vectors):
  for content in (
      "5 2\na 1 0\nb 0 1\nc 2 2\ndo 3 0\nn't 0 4 \n",  # As word2vec writes it.
      "a 1 0\nb 0 1\n. . . 2 2\nat name@site 3 0\nn't 0 4\n"):  # As in glove.840B.
    vectors.write_text(content)
    # The unknown word has the mean vector, (6, 7) / 5.
    scores = dialogue_metrics.embedding_average(["n't", "zzz"], ["b", "a"])
    assert scores == pytest.approx(
        {"embedding_average": 100 * (1 + 6 / math.hypot(6, 7)) / 2})


def test_bad_word_vectors_are_named_with_their_line(vectors):
  for content, message in [
      ("a 1 0\nb 7 1 0\n", "line 2: 3 numbers after the word, but 2 needed"),
      ("a 1 0\nb 1\n", "line 2: 1 numbers after the word, but 2 needed"),
      ("a 1 0\nb 1 x\n", "line 2: not a word and numbers"),
      ("a\n", "line 1: 0 numbers after the word"),
      ("", "holds no text")]:
    vectors.write_text(content)
    with pytest.raises(ValueError, match=f"glove.txt.*{message}"):
      dialogue_metrics.embedding_average(["a"], ["b"])


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
