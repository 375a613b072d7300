"""The user's own classes, and metrics of pairs by name."""

import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from support.task_files import scores
from support.task_files import write
from synthesizer_mtf.tasks import summarization
from synthesizer_mtf.tasks import text_metrics
from synthesizer_mtf.tasks import translation
from t5.evaluation import metrics as t5_metrics

NAME = "synth_text_pairs_encoder"


@pytest.fixture(autouse=True)
def files(vocabulary, tmp_path):
  """A file of texts and classes."""
  bind("pairs.train", write(tmp_path, {
      "a.tsv": "so good\tpos\nso dull\tneg\nso so\tneutral\n"}))


def test_the_target_is_one_class_in_the_order_of_gin():
  bind("pairs.classes", ["neg", "neutral", "pos"])
  task = seqio.TaskRegistry.get(NAME)
  vocabulary = task.output_features["targets"].vocabulary
  assert vocabulary.vocab_size == 4
  rows = examples(NAME, lengths={"inputs": 16, "targets": 1})
  assert [e["targets"].tolist() for e in rows] == [[3], [1], [2]]
  assert [e["inputs_pretokenized"] for e in rows] == [
      b"so good", b"so dull", b"so so"]
  assert all(e["inputs"][-1] == 1 for e in rows)
  targets = [task.postprocess_fn(text) for text in ("pos", "neg")]
  assert targets == ["pos", "neg"]  # As mode infer writes them.
  assert task.metric_fns[0](targets, ["pos", "neutral"]) == {"accuracy": 50.0}


def test_another_class_is_named_with_its_line():
  bind("pairs.classes", ["neg", "pos"])
  with pytest.raises(ValueError, match="a.tsv', line 3: the target 'neutral' is none"):
    examples(NAME)


def test_wrong_classes_are_named():
  for classes in (None, "neg", ["neg"], ["a", "a"], ["a", 1], []):
    bind("pairs.classes", classes)
    with pytest.raises(ValueError, match="pairs.classes` is .* but must be the names"):
      _ = seqio.TaskRegistry.get(NAME).output_features["targets"].vocabulary.vocab_size


def test_metrics_of_pairs_are_bleu_and_sequence_accuracy_or_have_names():
  metrics = scores("synth_text_pairs", ("a b c d", "a b c d"), ("e f g h", "e f g x"))
  assert metrics["sequence_accuracy"] == 50 and 50 < metrics["bleu"] < 100
  bind("pairs.metrics", ["rouge", "edit_distance", "accuracy", "tokenized_bleu"])
  metrics = scores("synth_text_pairs", *[("a b c d", "a b c d")] * 2)
  assert metrics.pop("mean_edit") == 0 and "bleu" not in metrics
  assert [metrics[name] for name in ("rouge1", "accuracy", "tokenized_bleu")] == (
      pytest.approx([100] * 3))


RUSSIAN = "привет мир это тест"
HINDI = "यह एक हिन्दी वाक्य"
CHINESE = "这是一个测试句子"
JAPANESE = "これは日本語の文です"
THAI = "นี่คือภาษาไทย"


@pytest.mark.parametrize("text", [RUSSIAN, HINDI, CHINESE, JAPANESE, THAI],
                         ids=["Russian", "Hindi", "Chinese", "Japanese", "Thai"])
def test_equal_texts_of_any_script_have_100_and_others_less(text):
  bind("pairs.metrics", ["rouge", "bleu"])
  metrics = scores("synth_text_pairs", (text, text))
  assert list(metrics.values()) == pytest.approx([100] * 5)
  changed = f"{text[:-3]}\u00e9\u00e8\u00ea"
  metrics = scores("synth_text_pairs", (text, text), (text, changed))
  assert all(50 <= value < 99 for value in metrics.values())


def test_bleu_of_short_targets_says_why_it_is_0(caplog):
  bind("pairs.metrics", ["bleu"])
  text_metrics._say.cache_clear()
  for pairs, said in [([("yes", "no")], 0), ([("a b c d", "a b c d")], 0),
                      ([("yes", "yes"), ("no", "yes")], 1)]:
    scores("synth_text_pairs", *pairs)
    assert caplog.text.count("although some targets are met exactly") == said


def test_letters_with_accents_count_in_rouge():
  bind("pairs.metrics", ["rouge"])
  assert set(scores("synth_text_pairs", ("été", "ôtô")).values()) == {0}
  metrics = scores("synth_text_pairs", ("l'été d'or", "l\u2019e\u0301te\u0301 d'or"))
  assert metrics["rouge2"] == 100


@pytest.mark.parametrize("texts", [
    ["It\u2019s 3.5% of A-B, hello_world \u2014 again . And then"], ["x"], [""]])
def test_texts_that_t5_reads_keep_t5s_numbers(texts):
  predictions = [text.replace("hello", "h\u00e9llo") for text in texts]
  assert text_metrics.rouge(texts, predictions) == summarization.rouge(
      texts, predictions)
  assert text_metrics.bleu(texts, predictions) == t5_metrics.bleu(texts, predictions)
  ascii_texts = [text.encode("ascii", "replace").decode() for text in texts]
  assert summarization.rouge(texts, ascii_texts) == summarization.rouge(
      texts, ascii_texts, tokenizer=text_metrics.Words())
  for name, functions in (("synth_cnn_dailymail", [summarization.rouge]),
                          ("synth_wmt14_ende", [t5_metrics.bleu,
                                                translation.tokenized_bleu])):
    assert seqio.TaskRegistry.get(name).metric_fns == functions


def test_other_words_than_t5s_are_said_once(caplog):
  text_metrics._say.cache_clear()
  bind("pairs.metrics", ["rouge", "bleu", "edit_distance"])
  for _ in range(2):
    scores("synth_text_pairs", (CHINESE, CHINESE))
  said = [record.getMessage() for record in caplog.records]
  assert [line.split()[0] for line in said] == ["`rouge`", "`bleu`", "`edit_distance`"]
  assert "tokenizer 'zh', not T5's 'intl'" in said[1]
  scores("synth_text_pairs", (JAPANESE, JAPANESE))
  assert "tokenizer 'char'" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("metrics", ["blue", ["bleu", "f1"], [3]])
def test_a_wrong_metric_is_named_with_the_known_metrics(metrics):
  bind("pairs.metrics", metrics)
  with pytest.raises(ValueError, match="pairs.metrics` names .*'accuracy', 'bleu'"):
    _ = seqio.TaskRegistry.get("synth_text_pairs").metric_fns
