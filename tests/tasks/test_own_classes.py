"""The user's own classes, and metrics of pairs by name."""

import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from support.task_files import scores
from support.task_files import write

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
  found = examples(NAME, lengths={"inputs": 16, "targets": 1})
  assert [e["targets"].tolist() for e in found] == [[3], [1], [2]]
  assert [e["inputs_pretokenized"] for e in found] == [
      b"so good", b"so dull", b"so so"]
  assert all(e["inputs"][-1] == 1 for e in found)
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
  found = scores("synth_text_pairs", ("a b c d", "a b c d"), ("e f g h", "e f g x"))
  assert found["sequence_accuracy"] == 50 and 50 < found["bleu"] < 100
  bind("pairs.metrics", ["rouge", "edit_distance", "accuracy", "tokenized_bleu"])
  found = scores("synth_text_pairs", *[("a b c d", "a b c d")] * 2)
  assert found.pop("mean_edit") == 0 and "bleu" not in found
  assert [found[name] for name in ("rouge1", "accuracy", "tokenized_bleu")] == (
      pytest.approx([100] * 3))


@pytest.mark.parametrize("metrics", ["blue", ["bleu", "f1"], [3]])
def test_a_wrong_metric_is_named_with_the_known_metrics(metrics):
  bind("pairs.metrics", metrics)
  with pytest.raises(ValueError, match="pairs.metrics` names .*'accuracy', 'bleu'"):
    _ = seqio.TaskRegistry.get("synth_text_pairs").metric_fns
