"""The user's own classes, and metrics of pairs by name."""

import gin
import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from synthesizer_mtf.tasks import own_text

pytestmark = pytest.mark.usefixtures("clean_tasks")
NAME = "synth_text_pairs_encoder"


@pytest.fixture(autouse=True)
def files(clean_tasks, sentencepiece_model, tmp_path):
  """A file of texts and classes, and its path."""
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  path = tmp_path / "a.tsv"
  path.write_text("so good\tpos\nso dull\tneg\nso so\tneutral\n")
  bind("pairs.train", str(path))
  return path


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
  targets = [task.postprocess_fn(text) for text in ("pos", "neg", "nonsense")]
  assert targets == [2, 0, -1]
  assert task.metric_fns[0]([2, 0], [2, 1]) == {"accuracy": 50.0}


def test_another_class_is_named_with_its_line(files):
  bind("pairs.classes", ["neg", "pos"])
  with pytest.raises(ValueError, match="a.tsv', line 3: the target 'neutral' is none"):
    examples(NAME)


@pytest.mark.parametrize("classes", [None, "neg", ["neg"], ["a", "a"], ["a", 1], []])
def test_wrong_classes_are_named(classes):
  bind("pairs.classes", classes)
  with pytest.raises(ValueError, match="pairs.classes` is .* but must be the names"):
    _ = seqio.TaskRegistry.get(NAME).output_features["targets"].vocabulary.vocab_size


def test_metrics_of_pairs_have_names():
  bind("pairs.metrics", ["rouge", "edit_distance"])
  scores = {}
  for metric in seqio.TaskRegistry.get("synth_text_pairs").metric_fns:
    scores.update(metric(["a b c d"], ["a b c d"]))
  assert scores["rouge1"] == 100 and scores["mean_edit"] == 0
  assert "bleu" not in scores


@pytest.mark.parametrize("name", ["accuracy", "bleu", "tokenized_bleu",
                                  "sequence_accuracy"])
def test_every_metric_of_pairs_takes_texts(name):
  score, = own_text.METRICS[name](["a b c d"] * 2, ["a b c d"] * 2).values()
  assert score == pytest.approx(100)


@pytest.mark.parametrize("metrics", ["blue", ["bleu", "f1"], [3]])
def test_a_wrong_metric_is_named_with_the_known_metrics(metrics):
  bind("pairs.metrics", metrics)
  with pytest.raises(ValueError, match="pairs.metrics` names .*'accuracy', 'bleu'"):
    _ = seqio.TaskRegistry.get("synth_text_pairs").metric_fns
  assert gin.query_parameter("synthesizer_mtf.tasks.pairs.metrics") == metrics
