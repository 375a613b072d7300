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
from t5.data import preprocessors
import tensorflow.compat.v2 as tf

PIECES = 500  # of the tests' model
PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece

pytestmark = pytest.mark.usefixtures("clean_tasks")


@pytest.fixture(autouse=True)
def chosen(clean_tasks, sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)


def features():
  return vocabulary.features()


def corrupt(function, length, output_features, seed=3):
  """The corrupted examples of a document of 20,000 tokens."""
  tokens = np.arange(20_000, dtype=np.int32) % (PIECES - 3) + 3
  dataset = tf.data.Dataset.from_tensors({"targets": tokens})
  with seqio.utils.map_seed_manager(seed):
    dataset = function(
        dataset, {"inputs": length, "targets": length}, output_features)
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


@pytest.mark.parametrize("length", [64, 512, 1792])
def test_examples_equal_t5s_if_its_sentinels_are_enough(
    length, sentencepiece_model):
  theirs = seqio.Feature(seqio.SentencePieceVocabulary(sentencepiece_model, 100))
  expected = corrupt(preprocessors.span_corruption, length,
                     {"inputs": theirs, "targets": theirs})
  found = corrupt(span_corruption.span_corruption, length, features())
  assert len(found) == len(expected) > 9
  for ours, others in zip(found, expected):
    np.testing.assert_array_equal(ours["inputs"], others["inputs"])
    np.testing.assert_array_equal(ours["targets"], others["targets"])


def test_further_sentinels_are_ids_that_no_word_has():
  first, *_ = corrupt(span_corruption.span_corruption, 2048, features())
  # 341 of the 2274 tokens are noise, in 114 spans.
  expected = [*range(599, 499, -1), *range(600, 614)]
  assert sentinels(first["inputs"]) == sentinels(first["targets"]) == expected
  assert sum(first["inputs"] < PIECES) == 2274 - 341


def test_too_few_sentinels_are_an_error_that_says_what_to_do():
  with pytest.raises(ValueError) as error:
    corrupt(span_corruption.span_corruption, 4096, features())
  for part in ("4096 inputs", "227 spans", "the vocabulary has 140",
               "span_corruption.mean_noise_span_length`, which is 3.0",
               "noise_density`, which is 0.15", "vocabulary.extra_ids` = 227"):
    assert part in str(error.value)


def test_extra_ids_are_a_parameter_and_the_first_100_keep_their_ids():
  bind("vocabulary.extra_ids", 228)
  chosen = vocabulary.TaskVocabulary()
  assert chosen.vocab_size == PIECES + 228 and chosen.extra_ids == 228
  assert chosen.encode("<extra_id_0> <extra_id_99> <extra_id_100>") == [599, 500, 600]
  first, *_ = corrupt(span_corruption.span_corruption, 4096, features())
  assert sentinels(first["targets"]) == [*range(599, 499, -1), *range(600, 727)]


@pytest.mark.parametrize("number, ids", [(7, range(506, 499, -1)), (0, [])])
def test_fewer_extra_ids_are_numbered_from_the_last_one_down(number, ids):
  bind("vocabulary.extra_ids", number)
  spare = range(PIECES + number, 512)
  assert vocabulary.TaskVocabulary().sentinel_ids() == [*ids, *spare]


@pytest.mark.parametrize("value", [-1, 2.5, "100", True])
def test_wrong_extra_ids_are_named(value):
  bind("vocabulary.extra_ids", value)
  with pytest.raises(ValueError, match="vocabulary.extra_ids` is .* integer"):
    _ = vocabulary.TaskVocabulary().vocab_size


def test_t5s_vocabulary_has_28_further_sentinels_and_does_not_grow(tmp_path):
  model = sentencepiece_model_pb2.ModelProto()
  model.trainer_spec.pad_id, model.trainer_spec.eos_id = 0, 1
  model.trainer_spec.unk_id, model.trainer_spec.bos_id = 2, -1
  kinds = {0: PIECE.CONTROL, 1: PIECE.CONTROL, 2: PIECE.UNKNOWN}
  names = {0: "<pad>", 1: "</s>", 2: "<unk>"}
  for i in range(32_000):
    model.pieces.add(piece=names.get(i, f"p{i}"), score=-float(i),
                     type=kinds.get(i, PIECE.NORMAL))
  (tmp_path / "spm.model").write_bytes(model.SerializeToString())
  bind("vocabulary.sentencepiece_model", str(tmp_path / "spm.model"))
  chosen = vocabulary.TaskVocabulary()
  assert chosen.vocab_size == 32_100
  assert chosen.sentinel_ids() == [*range(32_099, 31_999, -1), *range(32_100, 32_128)]


def test_further_sentinels_end_where_mesh_rounds_the_vocabulary_to():
  gin.parse_config("transformer.Unitransformer.vocab_divisor = 8")
  assert vocabulary.TaskVocabulary().sentinel_ids()[100:] == []
  gin.parse_config("transformer.Unitransformer.vocab_divisor = 64")
  assert vocabulary.TaskVocabulary().sentinel_ids()[100:] == list(range(600, 640))


@pytest.mark.parametrize("mark", ["", "\u2581"])
def test_a_model_with_sentinels_built_in_is_used_as_it_is(
    mark, sentencepiece_model, tmp_path):
  with_sentinels(sentencepiece_model, reversed(range(100)), tmp_path / "a.model", mark)
  chosen = vocabulary.TaskVocabulary()
  assert chosen.vocab_size == 600 and chosen.extra_ids == 100
  assert chosen.sentinel_ids() == [*range(599, 499, -1), *range(600, 640)]
  if mark:
    assert chosen.sp_model == seqio.SentencePieceVocabulary(
        sentencepiece_model, 100).sp_model


def test_sentinels_that_are_built_in_have_their_numbers_wherever_they_are(
    sentencepiece_model, tmp_path):
  with_sentinels(sentencepiece_model, range(40), tmp_path / "a.model")
  bind("vocabulary.extra_ids", 42)
  assert vocabulary.TaskVocabulary().sentinel_ids()[:42] == list(range(500, 542))
  first, *_ = corrupt(span_corruption.span_corruption, 512, features())
  assert sentinels(first["inputs"]) == list(range(500, 528))


@pytest.mark.parametrize("numbers, extra_ids, message", [
    ([0, 1, 3], None, r"numbered from 0 on but \[0, 1, 3\]"),
    ([0, 1, 2], 2, "vocabulary.extra_ids` is 2, but .* has 3 built in"),
])
def test_built_in_sentinels_that_cannot_be_used_are_named(
    numbers, extra_ids, message, sentencepiece_model, tmp_path):
  with_sentinels(sentencepiece_model, numbers, tmp_path / "a.model")
  bind("vocabulary.extra_ids", extra_ids)
  with pytest.raises(ValueError, match=message):
    _ = vocabulary.TaskVocabulary().vocab_size


@pytest.mark.parametrize("density, length, noise, spans", [
    (0.5, 3.0, 0.5, 1 / 6), (0.15, 10.0, 0.15, 0.015), (0.3, 1.0, 0.3, 0.3)])
def test_density_and_length_of_spans_are_parameters(density, length, noise, spans):
  bind("span_corruption.noise_density", density)
  bind("span_corruption.mean_noise_span_length", length)
  first, *_ = corrupt(span_corruption.span_corruption, 256, features())
  taken_out = sum(first["targets"] < PIECES)
  total = taken_out + sum(first["inputs"] < PIECES)
  assert taken_out / total == pytest.approx(noise, abs=0.01)
  assert len(sentinels(first["inputs"])) / total == pytest.approx(spans, abs=0.01)


@pytest.mark.parametrize("density, length", [
    (0.15, 3.0), (0.5, 3.0), (0.17, 2.5), (0.3, 4.0), (0.15, 1.0)])
def test_t5_takes_as_many_sentinels_as_are_asked_for(density, length):
  for inputs in range(20, 260, 17):
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
  with pytest.raises(ValueError, match=f"span_corruption.{parameter}` is {value!r}"):
    corrupt(span_corruption.span_corruption, 64, features())


def parse(objective, sentencepiece_model, *bindings):
  gin.parse_config_files_and_bindings([f"objectives/{objective}.gin"], [
      "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
      f"'{sentencepiece_model}'", *bindings], finalize_config=False,
      skip_unknown=("vocabularies.Vocabulary",))


@pytest.mark.parametrize("finalize", [False, True])
@pytest.mark.parametrize("objective, bindings, density, length", [
    ("span_10_15_u_u", [], 0.15, 10.), ("span_3_15_u_u", [], 0.15, 3.),
    ("span", ["noise_density = 0.3"], 0.3, 3.),
    ("span", ["preprocessors.denoise.noise_density = 0.3"], 0.3, 3.),
    ("span_2_15_u_u", ["synthesizer_mtf.tasks.span_corruption."
                       "mean_noise_span_length = 2.0"], 0.15, 2.)])
def test_t5s_gin_files_of_span_corruption_have_their_effect(
    objective, bindings, density, length, finalize, sentencepiece_model):
  parse(objective, sentencepiece_model, *bindings)
  if finalize:
    gin.finalize()
  found = corrupt(span_corruption.span_corruption, 64, features())
  gin.clear_config()
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
  expected = corrupt(functools.partial(
      span_corruption.span_corruption, noise_density=density,
      mean_noise_span_length=length), 64, features())
  assert len(found) == len(expected)
  for ours, theirs in zip(found, expected):
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("objective", [
    "iid_50_u_u", "prefix_lm", "lm", "all_permute", "iid_15_r10s90_f", "denoise"])
def test_t5s_gin_files_of_other_objectives_are_refused(objective, sentencepiece_model):
  parse(objective, sentencepiece_model)
  with pytest.raises(ValueError, match="another objective than span corruption, .* "
                     "Leave it out, and bind `synthesizer_mtf.tasks.span_corruption"):
    corrupt(span_corruption.span_corruption, 64, features())


def test_two_lengths_of_spans_are_refused(sentencepiece_model):
  parse("span_10_15_u_u", sentencepiece_model,
        "synthesizer_mtf.tasks.span_corruption.mean_noise_span_length = 3.0")
  with pytest.raises(ValueError, match="mean_noise_span_length` is 3.0, but T5's "
                     "`preprocessors.random_spans_noise_mask.mean_.*` is 10.0"):
    corrupt(span_corruption.span_corruption, 64, features())
