"""Training and inspect_task tell what a vocabulary does not keep of the data."""

import functools
import logging
from unittest import mock

import gin
import pytest
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import vocabulary as vocabulary_lib
from synthesizer_mtf.tools.inspect_task import __main__ as inspect_task
from synthesizer_mtf.trainer.data import unknown_pieces
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v1 as tf

ORDINARY = ["the function\tone", "a value\ttwo"]
STRANGE = ["the function\tone {x}", "the \u0151 and {x}\ttwo", "one  value\tthree"]


@pytest.fixture(name="add")
def fixture_add(tmp_path, sentencepiece_model):
  """Registers a task of seqio's own classes, as T5's are, on some lines."""
  names = []

  def add(lines, vocabulary=None, *more, precache=(), metric_fns=()):
    name = f"tests_unknown_{len(names)}"
    names.append(name)
    path = tmp_path / f"{name}.tsv"
    path.write_text("".join(f"{line}\n" for line in lines))
    feature = seqio.Feature(
        vocabulary or seqio.SentencePieceVocabulary(sentencepiece_model))
    seqio.TaskRegistry.add(
        name, seqio.TextLineDataSource({"train": str(path)}), preprocessors=[
            functools.partial(
                preprocessors.parse_tsv, field_names=["inputs", "targets"]),
            seqio.preprocessors.tokenize, *precache, seqio.CacheDatasetPlaceholder(),
            *more],
        output_features={"inputs": feature, "targets": feature},
        metric_fns=metric_fns)
    return name

  yield add
  for name in names:
    seqio.TaskRegistry.remove(name)


@pytest.fixture(name="told")
def fixture_told(caplog):
  def told(*args):
    caplog.clear()
    with caplog.at_level(logging.INFO):
      unknown_pieces.log(*args)
    return [record.getMessage() for record in caplog.records
            if "In the first" in record.getMessage()]
  return told


def test_the_share_is_told_once_with_characters(add, told, sentencepiece_model):
  name = add(STRANGE)
  vocabulary = seqio.SentencePieceVocabulary(sentencepiece_model)
  ids = [i for line in STRANGE for text in line.split("\t")
         for i in vocabulary.encode(text)]
  unknown = ids.count(vocabulary.unk_id)
  assert unknown
  line, = told(name)
  assert f"{unknown / len(ids):.2%} of the pieces are unknown" in line
  assert "'\u0151'" in line and "'e'" not in line and repr(name) in line
  assert "16.7% of the texts have several blanks" in line


def test_batches_of_texts_of_one_length_are_counted_and_only_features_with_a_text(
    add, told):
  def cut(data):
    return data.map(lambda row: {**row, "inputs": tf.ensure_shape(
        row["inputs"][:2], [2]), "targets_pretokenized": tf.constant(["a", "b"])})

  lines = ["\u0151\tone"] * (unknown_pieces._AT_ONCE + 1)
  line, = told(add(lines, precache=[cut]))
  assert f"In the first {len(lines)} texts" in line and "50.00% of the pieces" in line


def test_a_task_without_its_texts_is_not_counted(add):
  def without_texts(data):
    return data.map(lambda row: {key: row[key] for key in ("inputs", "targets")})

  task = seqio.TaskRegistry.get(add(STRANGE, precache=[without_texts]))
  assert unknown_pieces.find([task], "train").texts == 0


def test_nothing_is_told_where_all_is_known_or_nothing_can_be_read(add, told):
  def fail(data):
    raise OSError("gone")

  assert not told(add(ORDINARY)) and not told(add(STRANGE, seqio.ByteVocabulary()))
  assert not told(add(STRANGE, None, fail), "validation") and not told("unknown")


def test_data_that_our_checks_refuse_is_told_at_once_unless_a_cache_is_read(
    add, monkeypatch):
  task = seqio.TaskRegistry.get(add(STRANGE))
  refuse = mock.PropertyMock(side_effect=checks.Error("no network"))
  monkeypatch.setattr(type(task.source), "splits", refuse)
  with pytest.raises(checks.Error, match="no network"):
    unknown_pieces.log(task.name)
  gin.bind_parameter("mesh_train_dataset_fn.use_cached", True)
  unknown_pieces.log(task.name)


def test_targets_that_no_output_equals_are_counted_where_metrics_compare_them(
    add, told):
  lines = ["one \u212b\tno\u3000one", "two\t2 \u339e", "three\ttwo  twos",
           "four\t\u2116 5", "five\t\u0151\u2116"]
  line, = told(add(lines, metric_fns=[metrics.sequence_accuracy]))
  assert ("2 of the first 5 targets of 'tests_unknown_0' with other characters, such "
          "as '2 \u339e' as '2 km': no output equals them") in line
  assert "other characters" not in told(add(lines))[0]
  assert not told(add(ORDINARY, metric_fns=[metrics.sequence_accuracy]))


def test_a_mixture_counts_all_its_tasks_before_an_objective_takes_texts_away(add, told):
  def without_texts(data):
    return data.map(lambda row: {key: row[key] for key in ("inputs", "targets")})

  names = [add(ORDINARY), add(STRANGE, None, without_texts)]
  seqio.MixtureRegistry.add("tests_unknown_mixture", names, default_rate=1)
  try:
    line, = told("tests_unknown_mixture")
  finally:
    seqio.MixtureRegistry.remove("tests_unknown_mixture")
  assert "In the first 10 texts of 'tests_unknown_mixture', " in line
  assert "'\u0151'" in line


def test_our_own_tasks_are_read_once_and_only_their_beginning(
    told, tmp_path, monkeypatch, sentencepiece_model):
  path = tmp_path / "pairs.tsv"
  path.write_text("".join(f"{line}\n" for line in [*ORDINARY * 300, *STRANGE]))
  monkeypatch.setenv("SYNTHESIZER_MTF_PAIRS_TRAIN", str(path))
  monkeypatch.setenv(vocabulary_lib.VARIABLE, sentencepiece_model)
  assert not told("synth_text_pairs")
  path.write_text("".join(f"{line}\n" for line in STRANGE))
  line, = told("synth_text_pairs")
  assert "'\u0151'" in line


def test_inspect_task_tells_it(add, capsys):
  inspect_task.main([add(STRANGE), "--number=1"])
  assert "of the pieces are unknown to the vocabulary" in capsys.readouterr().out
  inspect_task.main([add(ORDINARY), "--number=1"])
  assert "of the pieces are unknown" not in capsys.readouterr().out
