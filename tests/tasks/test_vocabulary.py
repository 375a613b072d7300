"""The vocabulary of all tasks on text: chosen in gin, the environment, or T5's."""

import shutil

import gin
import pytest
from sentencepiece import sentencepiece_model_pb2
import seqio
from support.task_files import bind
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import vocabulary
import t5.data
from t5.data import mixtures  # noqa: F401
from t5.models import mesh_transformer

# Tasks whose tokens are not pieces of text have their own vocabularies.
OF_SYMBOLS = ("synth_ability_", "synth_lra_")

pytestmark = pytest.mark.usefixtures("clean_tasks")


def test_gin_chooses_the_vocabulary_of_every_task_on_text(
    sentencepiece_model, monkeypatch):
  inputs, targets = mesh_transformer.get_vocabulary("synth_super_glue_boolq")
  gin.bind_parameter("run.vocabulary", (inputs, targets))  # As the trainer does.
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", "/no/such.model")
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  assert inputs.vocab_size == targets.vocab_size == 600
  for name in seqio.TaskRegistry.names():
    if name.startswith("synth_") and not name.startswith(OF_SYMBOLS):
      for feature in seqio.TaskRegistry.get(name).output_features.values():
        if not isinstance(feature.vocabulary, labels.LabelVocabulary):
          assert feature.vocabulary.vocab_size == 600


def test_without_gin_it_is_the_environments_or_t5s(sentencepiece_model, monkeypatch):
  chosen = vocabulary.TaskVocabulary()
  assert chosen.sentencepiece_model_file == t5.data.DEFAULT_SPM_PATH
  assert chosen == t5.data.get_default_vocabulary()
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", sentencepiece_model)
  chosen = vocabulary.TaskVocabulary()
  assert chosen.decode(chosen.encode("the statement")) == "the statement"
  # Vocabularies compare by their files.
  assert chosen == vocabulary.TaskVocabulary()
  assert chosen == seqio.SentencePieceVocabulary(sentencepiece_model, 100)
  assert chosen != t5.data.get_default_vocabulary()


def with_another_end(path):
  """The bytes of a SentencePiece model whose end of a text is another piece."""
  model = sentencepiece_model_pb2.ModelProto()
  with open(path, "rb") as f:
    model.ParseFromString(f.read())
  model.trainer_spec.eos_piece = model.pieces[7].piece
  model.trainer_spec.eos_id = 7
  return model.SerializeToString()


def test_a_file_that_is_no_vocabulary_of_t5s_kind_is_named(
    sentencepiece_model, tmp_path):
  for content, message in [
      (b"", "spm.model.*not a SentencePiece model"),
      (b"no model at all", "spm.model.*not a SentencePiece model"),
      (with_another_end(sentencepiece_model), "T5 needs .0, 1, 2.; train the model")]:
    (tmp_path / "spm.model").write_bytes(content)
    bind("vocabulary.sentencepiece_model", str(tmp_path / "spm.model"))
    with pytest.raises(ValueError, match=message):
      _ = vocabulary.TaskVocabulary().vocab_size


@pytest.mark.parametrize("path, reason", [
    ("/", "Is a directory"), ("/no/such.model", "No such file or directory"),
    ("gs://no-such-bucket/a.model", "no network")])
def test_a_vocabulary_that_cannot_be_read_says_why(path, reason, monkeypatch):
  monkeypatch.setattr(vocabulary.tf.io.gfile, "GFile", _no_cloud)
  bind("vocabulary.sentencepiece_model", path)
  with pytest.raises(ValueError) as error:
    _ = vocabulary.TaskVocabulary().vocab_size
  for part in (vocabulary.PARAMETER, f"is '{path}', which cannot be read ({reason}",
               "SYNTHESIZER_MTF_VOCAB"):
    assert part in str(error.value)


def _no_cloud(path, mode, open_file=vocabulary.tf.io.gfile.GFile):
  """Opens a local file; for a file in the cloud, fails as without a network."""
  if path.startswith("gs://"):
    raise vocabulary.tf.errors.UnavailableError(None, None, "no network")
  return open_file(path, mode)


def test_a_vocabulary_is_read_again_after_its_file_has_changed(
    sentencepiece_model, tmp_path):
  path = tmp_path / "spm.model"
  shutil.copy(sentencepiece_model, path)
  first = vocabulary.load("it", str(path))
  assert vocabulary.load("it", str(path)) is first
  path.write_text("no model")
  with pytest.raises(checks.Error, match="spm.model', which is not a SentencePi"):
    vocabulary.load("it", str(path))
