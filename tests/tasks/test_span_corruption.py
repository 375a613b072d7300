"""Sentinels of span corruption: T5's first, then unused ids, and never a word."""

import functools

import gin
import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2
import seqio
from support.task_files import bind
from synthesizer_mtf.tasks import span_corruption
from synthesizer_mtf.tasks import vocabulary
from t5.data import mixtures  # noqa: F401
from t5.data import preprocessors
import tensorflow.compat.v2 as tf

PIECES = 500  # of the tests' model
PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece

pytestmark = pytest.mark.usefixtures("vocabulary")


def corrupt(length, function=span_corruption.span_corruption, output_features=None):
  """The corrupted examples of a document of 20,000 tokens."""
  tokens = np.arange(20_000, dtype=np.int32) % (PIECES - 3) + 3
  dataset = tf.data.Dataset.from_tensors({"targets": tokens})
  with seqio.utils.map_seed_manager(3):
    dataset = function(dataset, {"inputs": length, "targets": length},
                       output_features or vocabulary.features())
  return list(dataset.as_numpy_iterator())


def sentinels(ids):
  return ids[ids >= PIECES].tolist()


def with_sentinels(path, numbers, to, mark="\u2581"):
  """Writes a SentencePiece model that contains sentinels, in this order."""
  model = sentencepiece_model_pb2.ModelProto()
  with open(path, "rb") as f:
    model.ParseFromString(f.read())
  for i in numbers:
    model.pieces.add(
        piece=f"{mark}<extra_id_{i}>", score=0.0, type=PIECE.USER_DEFINED)
  to.write_bytes(model.SerializeToString())
  bind("vocabulary.sentencepiece_model", str(to))


@pytest.mark.parametrize("length", [64, 1792])
def test_examples_equal_t5s_if_its_sentinels_are_enough(
    length, sentencepiece_model):
  theirs = seqio.Feature(seqio.SentencePieceVocabulary(sentencepiece_model, 100))
  expected = corrupt(length, preprocessors.span_corruption,
                     {"inputs": theirs, "targets": theirs})
  assert len(expected) > 9
  assert_equal(corrupt(length), expected)


def assert_equal(rows, expected):
  assert len(rows) == len(expected)
  for ours, theirs in zip(rows, expected):
    np.testing.assert_equal(ours, theirs)


def test_further_sentinels_are_ids_that_no_word_has():
  first, *_ = corrupt(2048)
  # 341 of the 2274 tokens are noise, in 114 spans.
  expected = [*range(599, 499, -1), *range(600, 614)]
  assert sentinels(first["inputs"]) == sentinels(first["targets"]) == expected
  assert sum(first["inputs"] < PIECES) == 2274 - 341


def test_too_few_sentinels_are_an_error_that_says_what_to_do():
  with pytest.raises(ValueError) as error:
    corrupt(4096)
  for part in ("4096 inputs", "227 spans", "the vocabulary has 140",
               "span_corruption.mean_noise_span_length`, which is 3.0",
               "noise_density`, which is 0.15", "vocabulary.extra_ids` = 227"):
    assert part in str(error.value)


def test_extra_ids_are_a_parameter_and_the_first_100_keep_their_ids():
  bind("vocabulary.extra_ids", 228)
  chosen = vocabulary.TaskVocabulary()
  assert chosen.vocab_size == PIECES + 228 and chosen.extra_ids == 228
  assert chosen.encode("<extra_id_0> <extra_id_99> <extra_id_100>") == [599, 500, 600]
  first, *_ = corrupt(4096)
  assert sentinels(first["targets"]) == [*range(599, 499, -1), *range(600, 727)]


def test_fewer_extra_ids_are_numbered_from_the_last_one_down():
  for number, ids in ((7, range(506, 499, -1)), (0, [])):
    bind("vocabulary.extra_ids", number)
    assert vocabulary.TaskVocabulary().sentinel_ids() == [
        *ids, *range(PIECES + number, 512)]


def test_further_sentinels_end_where_mesh_rounds_the_vocabulary_to():
  gin.parse_config("transformer.Unitransformer.vocab_divisor = 8")
  assert vocabulary.TaskVocabulary().sentinel_ids()[100:] == []
  gin.parse_config("transformer.Unitransformer.vocab_divisor = 64")
  assert vocabulary.TaskVocabulary().sentinel_ids()[100:] == list(range(600, 640))


def test_a_model_with_sentinels_built_in_is_used_as_it_is(
    sentencepiece_model, tmp_path):
  for mark in ("", "\u2581"):
    with_sentinels(
        sentencepiece_model, reversed(range(100)), tmp_path / f"{mark}.model", mark)
    chosen = vocabulary.TaskVocabulary()
    assert chosen.vocab_size == 600 and chosen.extra_ids == 100
    assert chosen.sentinel_ids() == [*range(599, 499, -1), *range(600, 640)]
  assert chosen.sp_model == seqio.SentencePieceVocabulary(
      sentencepiece_model, 100).sp_model


def test_sentinels_that_are_built_in_have_their_numbers_wherever_they_are(
    sentencepiece_model, tmp_path):
  with_sentinels(sentencepiece_model, range(40), tmp_path / "a.model")
  bind("vocabulary.extra_ids", 42)
  assert vocabulary.TaskVocabulary().sentinel_ids()[:42] == list(range(500, 542))
  first, *_ = corrupt(512)
  assert sentinels(first["inputs"]) == list(range(500, 528))


def test_built_in_sentinels_that_cannot_be_used_are_named(
    sentencepiece_model, tmp_path):
  for numbers, extra_ids, message in [
      ([0, 1, 3], None, r"numbered from 0 on but \[0, 1, 3\]"),
      ([0, 1, 2], 2, "vocabulary.extra_ids` is 2, but .* has 3 built in")]:
    with_sentinels(sentencepiece_model, numbers, tmp_path / f"{extra_ids}.model")
    bind("vocabulary.extra_ids", extra_ids)
    with pytest.raises(ValueError, match=message):
      _ = vocabulary.TaskVocabulary().vocab_size


@pytest.mark.slow
def test_density_and_length_of_spans_are_parameters():
  for density, length in ((0.5, 3.0), (0.15, 10.0), (0.3, 1.0)):
    bind("span_corruption.noise_density", density)
    bind("span_corruption.mean_noise_span_length", length)
    first, *_ = corrupt(256)
    taken_out = sum(first["targets"] < PIECES)
    total = taken_out + sum(first["inputs"] < PIECES)
    assert taken_out / total == pytest.approx(density, abs=0.01)
    assert len(sentinels(first["inputs"])) / total == pytest.approx(
        density / length, abs=0.01)


def test_t5_takes_as_many_sentinels_as_are_asked_for():
  for density, length in (
      (0.15, 3.0), (0.5, 3.0), (0.17, 2.5), (0.3, 4.0), (0.15, 1.0)):
    for inputs in range(20, 260, 51):
      tokens, _ = preprocessors.random_spans_helper(inputs, density, length, 1, 1)
      mask = preprocessors.random_spans_noise_mask(
          tokens, density, seeds=[(0, 1), (2, 3)],
          mean_noise_span_length=length).numpy()
      begins = mask & ~np.concatenate([[False], mask[:-1]])
      assert span_corruption.sentinels_needed(inputs, density, length) == begins.sum()


@pytest.mark.parametrize("parameter, value", [
    ("noise_density", 0), ("noise_density", 1), ("noise_density", "0.15"),
    ("mean_noise_span_length", 0.5), ("mean_noise_span_length", None)])
def test_wrong_spans_are_named(parameter, value):
  bind(f"span_corruption.{parameter}", value)
  for read in (lambda: corrupt(64), span_corruption.bound_spans):
    with pytest.raises(ValueError, match=f"span_corruption.{parameter}` is {value!r}"):
      read()


def parse(objective, sentencepiece_model, *bindings):
  gin.parse_config_files_and_bindings([f"objectives/{objective}.gin"], [
      "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
      f"'{sentencepiece_model}'", *bindings], finalize_config=False,
      skip_unknown=("vocabularies.Vocabulary",))


@pytest.mark.slow
@pytest.mark.parametrize("objective, binding, density, length", [
    ("span_10_15_u_u", "", 0.15, 10.),
    ("span", "noise_density = 0.3", 0.3, 3.),
    ("span", "preprocessors.denoise.noise_density = 0.3", 0.3, 3.),
    ("span_2_15_u_u", "synthesizer_mtf.tasks.span_corruption."
                      "mean_noise_span_length = 2.0", 0.15, 2.)])
def test_t5s_gin_files_of_span_corruption_have_their_effect(
    objective, binding, density, length, sentencepiece_model):
  parse(objective, sentencepiece_model, binding)
  rows = corrupt(64)
  assert span_corruption.bound_spans() == (density, length)
  gin.finalize()
  assert_equal(corrupt(64), rows)
  assert span_corruption.bound_spans() == (density, length)
  gin.clear_config()
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  assert_equal(rows, corrupt(64, functools.partial(
      span_corruption.span_corruption, noise_density=density,
      mean_noise_span_length=length)))


def test_t5s_gin_files_of_other_objectives_are_refused(sentencepiece_model):
  for objective in ("iid_50_u_u", "prefix_lm", "lm", "all_permute", "iid_15_r10s90_f",
                    "denoise"):
    gin.clear_config()
    parse(objective, sentencepiece_model)
    with pytest.raises(ValueError, match="another objective than span corruption, .* "
                       "Leave it out, and bind `synthesizer_mtf.tasks.span_corruption"):
      corrupt(64)


def test_c4_is_t5s_span_corruption_on_another_version():
  ours = seqio.TaskRegistry.get("synth_c4_span_corruption")
  theirs = seqio.TaskRegistry.get("c4_v220_span_corruption")
  def name(p):
    return getattr(getattr(p, "func", p), "__name__", type(p).__name__)
  assert [name(p) for p in ours.preprocessors] == [
      name(p) for p in theirs.preprocessors]
  assert ours.source.tfds_dataset.name == "c4/en:3.1.0"


def test_two_lengths_of_spans_are_refused(sentencepiece_model):
  parse("span_10_15_u_u", sentencepiece_model,
        "synthesizer_mtf.tasks.span_corruption.mean_noise_span_length = 3.0")
  with pytest.raises(ValueError, match="mean_noise_span_length` is 3.0, but T5's "
                     "`preprocessors.random_spans_noise_mask.mean_.*` is 10.0"):
    corrupt(64)
