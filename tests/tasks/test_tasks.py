"""Tests of the tasks that are registered with seqio."""

import gzip

import gin
import numpy as np
import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import vocabulary
import t5.data
from t5.data import mixtures  # noqa: F401
from t5.models import mesh_transformer

TEXT = ["The cat sat on the mat. " * 8, "A dog and a bird went home. " * 8]
# Tasks whose tokens are not pieces of text have their own vocabularies.
OF_SYMBOLS = ("synth_ability_", "synth_lra_")


pytestmark = pytest.mark.usefixtures("clean_tasks")


def test_gin_chooses_the_vocabulary_of_every_task_on_text(sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  for name in seqio.TaskRegistry.names():
    if name.startswith("synth_") and not name.startswith(OF_SYMBOLS):
      for feature in seqio.TaskRegistry.get(name).output_features.values():
        if not isinstance(feature.vocabulary, labels.LabelVocabulary):
          assert feature.vocabulary.vocab_size == 600


def test_environment_chooses_the_vocabulary(sentencepiece_model, monkeypatch):
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", sentencepiece_model)
  chosen = vocabulary.TaskVocabulary()
  assert chosen.decode(chosen.encode("the statement")) == "the statement"


def test_gin_overrides_the_environment(sentencepiece_model, monkeypatch):
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", "/no/such.model")
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  assert vocabulary.TaskVocabulary().vocab_size == 600


def test_default_vocabulary_is_t5s():
  chosen = vocabulary.TaskVocabulary()
  assert chosen.sentencepiece_model_file == t5.data.DEFAULT_SPM_PATH
  assert chosen == t5.data.get_default_vocabulary()


def test_vocabularies_compare_by_their_file(sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  chosen = vocabulary.TaskVocabulary()
  assert chosen == vocabulary.TaskVocabulary()
  assert chosen == seqio.SentencePieceVocabulary(sentencepiece_model, 100)
  assert chosen != t5.data.get_default_vocabulary()


def test_trainer_resolves_the_vocabulary_after_gin(sentencepiece_model):
  inputs, targets = mesh_transformer.get_vocabulary("synth_super_glue_boolq")
  gin.bind_parameter("run.vocabulary", (inputs, targets))
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  assert inputs.vocab_size == targets.vocab_size == 600


def test_missing_vocabulary_names_parameter_value_and_remedy():
  bind("vocabulary.sentencepiece_model", "/no/such.model")
  with pytest.raises(ValueError) as error:
    _ = vocabulary.TaskVocabulary().vocab_size
  for part in (vocabulary.PARAMETER, "'/no/such.model'", "cannot be read",
               "SYNTHESIZER_MTF_VOCAB"):
    assert part in str(error.value)


@pytest.mark.parametrize("path, reason", [
    ("/", "Is a directory"), ("/no/such.model", "No such file or directory"),
    ("gs://no-such-bucket/a.model", "no network")])
def test_vocabulary_that_cannot_be_read_says_why(path, reason, monkeypatch):
  monkeypatch.setattr(vocabulary.tf.io.gfile, "GFile", _no_cloud)
  bind("vocabulary.sentencepiece_model", path)
  with pytest.raises(ValueError, match=fr"is '{path}', which cannot be read "
                                       fr"\({reason}"):
    _ = vocabulary.TaskVocabulary().vocab_size


def _no_cloud(path, mode, open_file=vocabulary.tf.io.gfile.GFile):
  """Opens a local file; for a file in the cloud, fails as without a network."""
  if path.startswith("gs://"):
    raise vocabulary.tf.errors.UnavailableError(None, None, "no network")
  return open_file(path, mode)


@pytest.mark.parametrize("content", [b"", b"no model at all"])
def test_file_that_is_no_vocabulary_is_named(content, tmp_path, monkeypatch):
  path = tmp_path / "spm.model"
  path.write_bytes(content)
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", str(path))
  with pytest.raises(ValueError, match="spm.model.*not a SentencePiece model"):
    _ = vocabulary.TaskVocabulary().vocab_size


def test_vocabulary_with_other_special_ids_is_refused(
    sentencepiece_model, tmp_path):
  from sentencepiece import sentencepiece_model_pb2
  model = sentencepiece_model_pb2.ModelProto()
  with open(sentencepiece_model, "rb") as f:
    model.ParseFromString(f.read())
  model.trainer_spec.eos_piece = model.pieces[7].piece
  model.trainer_spec.eos_id = 7
  path = tmp_path / "other.model"
  path.write_bytes(model.SerializeToString())
  bind("vocabulary.sentencepiece_model", str(path))
  with pytest.raises(ValueError, match="T5 needs .0, 1, 2.; train the model"):
    _ = vocabulary.TaskVocabulary().vocab_size


def test_c4_is_t5s_span_corruption_on_another_version():
  ours = seqio.TaskRegistry.get("synth_c4_span_corruption")
  theirs = seqio.TaskRegistry.get("c4_v220_span_corruption")
  def name(p):
    return getattr(getattr(p, "func", p), "__name__", type(p).__name__)
  assert [name(p) for p in ours.preprocessors] == [
      name(p) for p in theirs.preprocessors]
  assert ours.source.tfds_dataset.name == "c4/en:3.1.0"


def test_span_corruption_of_own_text_reads_plain_and_gzip_files(
    sentencepiece_model, tmp_path):
  (tmp_path / "a.txt").write_text("\ufeff" + TEXT[0] + "\r\n\n")
  with gzip.open(tmp_path / "b.txt.gz", "wt") as f:
    f.write(TEXT[1])
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  bind("text.train", [str(tmp_path / "*.txt"), str(tmp_path / "b.*")])
  found = examples("synth_text_span_corruption")
  sentinels = np.concatenate([e["inputs"] for e in found]) >= 500
  assert found and sentinels.any()
  source = seqio.TaskRegistry.get("synth_text_span_corruption").source
  assert source.num_input_examples("train") == 2


def test_lm_joins_the_documents_with_an_end_after_each(
    sentencepiece_model, tmp_path, monkeypatch):
  (tmp_path / "a.txt").write_text("\n".join(TEXT))
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  monkeypatch.setenv("SYNTHESIZER_MTF_TEXT_TRAIN", str(tmp_path / "a.txt"))
  found = examples("synth_text_lm", lengths={"targets": 50})
  tokens = np.concatenate([e["targets"] for e in found]).tolist()
  assert tokens.count(1) == 2 and tokens[-1] == 1
  assert all(list(e) == ["targets"] for e in found)


def test_pairs_are_measured_by_bleu_and_sequence_accuracy():
  task = seqio.TaskRegistry.get("synth_text_pairs")
  scores = {}
  for metric in task.metric_fns:
    scores.update(metric(["a b c d", "e f g h"], ["a b c d", "e f g x"]))
  assert scores["sequence_accuracy"] == 50 and 50 < scores["bleu"] < 100


@pytest.mark.parametrize("content, message", [
    (b"a\tb\nc\n", "line 2: 1 columns, but a pair needs 2"),
    (b"a\tb\nc\td\te\n", "line 2: 3 columns"),
    (b"a\t \n", "line 1: the input or the target is empty"),
])
def test_bad_columns_are_named_with_file_and_line(content, message, tmp_path):
  path = tmp_path / "bad.tsv"
  path.write_bytes(content)
  bind("pairs.train", str(path))
  with pytest.raises(ValueError, match=message) as error:
    examples("synth_text_pairs")
  assert str(path) in str(error.value)


@pytest.mark.parametrize("task, parameter", [
    ("synth_text_span_corruption", "text.train"),
    ("synth_text_lm", "text.train"), ("synth_text_pairs", "pairs.train")])
def test_unnamed_files_are_an_error_that_names_the_parameter(task, parameter):
  with pytest.raises(ValueError, match=f"synthesizer_mtf.tasks.{parameter}"):
    examples(task)


def test_glob_without_a_file_is_an_error():
  bind("text.train", "/no/such/*.txt")
  with pytest.raises(ValueError, match="text.train.*'/no/such/.*no such file"):
    examples("synth_text_lm")
