"""ListOps: drawn expressions, and good and bad files of the release."""

import itertools

import numpy as np
import pytest
import seqio
from studies.tasks import listops
from support.task_files import bind
from support.task_files import examples
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("clean_tasks")
DRAWN, FILES = "synth_lra_listops", "synth_lra_listops_files"
LENGTHS = {"inputs": 60, "targets": 1}
SMALL = {"max_depth": 5, "max_arguments": 4, "min_length": 7, "max_length": 60,
         "seed": 3, "train_examples": 53, "validation_examples": 11,
         "test_examples": 7}


@pytest.fixture(name="small")
def fixture_small():
  for name, value in SMALL.items():
    bind(f"lra_listops.{name}", value)


def evaluate(words):
  """Returns (value, depth) by a stack, with NumPy's median."""
  stack, depth = [[]], 1
  for word in words:
    if word == "]":
      operator, *values = stack.pop()
      value = {"[MIN": np.min, "[MAX": np.max, "[MED": np.median,
               "[SM": lambda v: sum(v) % 10}[operator](values)
      stack[-1].append(int(value))
    elif word.startswith("["):
      stack.append([word])
      depth = max(depth, len(stack))
    else:
      stack[-1].append(int(word))
  (value,), = stack
  return value, depth


def read(name, split):
  return [(e["inputs_pretokenized"].decode(), e["targets_pretokenized"].decode())
          for e in examples(name, split, LENGTHS)]


@pytest.mark.parametrize("grammar", [
    listops.Grammar(10, 10, 100, 700), listops.Grammar(3, 3, 4, 11)])
def test_values_equal_those_of_another_evaluator(grammar):
  grammar.check("x")
  found = list(itertools.islice(listops.expressions(grammar, 5), 150))
  assert len({text for text, _ in found}) == 150
  depths = set()
  for text, value in found:
    words = text.split()
    assert grammar.min_length <= len(words) <= grammar.max_length
    expected, depth = evaluate(words)
    assert value == expected
    depths.add(depth)
  assert max(depths) <= grammar.max_depth and len(depths) > 1
  assert {value for _, value in found} == set(range(10))


def test_a_list_has_from_two_to_max_arguments_members():
  found = itertools.islice(
      listops.expressions(listops.Grammar(2, 4, 4, 6), 1), 300)
  assert {len(text.split()) for text, _ in found} == {4, 5, 6}


def test_splits_have_their_sizes_and_nothing_in_common(small):
  found = {split: read(DRAWN, split) for split in ("train", "validation", "test")}
  assert {split: len(rows) for split, rows in found.items()} == {
      "train": 53, "validation": 11, "test": 7}
  assert len({text for rows in found.values() for text, _ in rows}) == 71
  assert found == {split: read(DRAWN, split) for split in found}
  for text, value in found["train"]:
    assert str(evaluate(text.split())[0]) == value
  source = seqio.TaskRegistry.get(DRAWN).source
  assert source.num_input_examples("validation") == 11
  assert source.made_with()["seed"] == 3
  bind("lra_listops.seed", 4)
  assert not set(read(DRAWN, "validation")) & set(found["validation"])


def test_more_training_examples_do_not_change_the_held_out_ones(small):
  before = read(DRAWN, "test")
  bind("lra_listops.train_examples", 60)
  assert read(DRAWN, "test") == before


def test_ids_are_words_and_the_target_is_one_class(small):
  example = examples(DRAWN, "validation", LENGTHS)[0]
  vocabulary = seqio.TaskRegistry.get(DRAWN).output_features["inputs"].vocabulary
  text = example["inputs_pretokenized"].decode()
  ids = example["inputs"].tolist()
  assert ids == vocabulary.encode(text) and 0 not in ids
  assert vocabulary.decode([*ids, 0, 0]) == text
  assert vocabulary.decode_tf(tf.constant(ids)).numpy().decode() == text
  assert [vocabulary.encode(word) for word in ("0", "9", "[MIN", "]", ")")] == [
      [1], [10], [11], [15], [17]]
  assert example["targets"].tolist() == [
      int(example["targets_pretokenized"].decode()) + 1]


@pytest.mark.parametrize("name, value, message", [
    ("max_depth", 1, "max_depth` is 1 but must be an integer of at least 2"),
    ("max_arguments", 2.5, "max_arguments` is 2.5 but must be an integer"),
    ("min_length", 61, "min_length` is 61, more than .*max_length`, which is 60"),
    ("max_length", "9", "max_length` is '9' but must be an integer of at least 4"),
    ("max_depth", 2, "min_length` is 7, but with `max_depth` = 2 and `max_arguments` "
     "= 4 no expression is longer than 6 words"),
    ("test_examples", 0, "test_examples` is 0 but must be a positive integer"),
    ("seed", -1, "seed` is -1 but must be an integer of at least 0"),
])
def test_impossible_parameters_are_named(name, value, message, small):
  bind(f"lra_listops.{name}", value)
  with pytest.raises(ValueError, match=message):
    examples(DRAWN, "train", LENGTHS)


def test_asking_for_more_examples_than_expressions_is_an_error(monkeypatch):
  monkeypatch.setattr(listops, "_TRIES", 5000)
  grammar = listops.Grammar(2, 2, 4, 4)  # An operator and two digits: 400.
  with pytest.raises(ValueError, match="found only 400 different expressions of 4 to "
                     "4 words with max_depth = 2"):
    list(itertools.islice(listops.expressions(grammar, 0), 401))


ROWS = ["( ( ( [MAX 2 ) ( ( ( ( [MIN 9 ) 4 ) 7 ) ] ) ) ] )\t4",
        "( ( ( [SM 8 ) 5 ) ] )\t3"]


@pytest.fixture(name="release")
def fixture_release(tmp_path):
  """A function that writes files of the release."""
  bind("lra_listops_files.directory", str(tmp_path))

  def write(*rows, header="Source\tTarget", name="basic_train.tsv"):
    (tmp_path / name).write_text("".join(f"{row}\n" for row in (header, *rows)))

  return write


def test_the_releases_files_are_read_without_their_parentheses(release):
  release(*ROWS)
  release(ROWS[1], name="basic_val.tsv")
  release(ROWS[0], name="basic_test.tsv")
  assert read(FILES, "train") == [("[MAX 2 [MIN 9 4 7 ] ]", "4"), ("[SM 8 5 ]", "3")]
  assert read(FILES, "validation") == [("[SM 8 5 ]", "3")]
  assert len(read(FILES, "test")) == 1


def test_parentheses_can_be_kept(release):
  release(*ROWS)
  bind("lra_listops_files.parentheses", True)
  assert read(FILES, "train")[1] == ("( ( ( [SM 8 ) 5 ) ] )", "3")
  assert seqio.TaskRegistry.get(FILES).source.made_with() == {"parentheses": True}


@pytest.mark.parametrize("rows, message", [
    ([ROWS[0], ROWS[1][:12]], "line 3: an expression, a tab and a digit are needed, "
     "not '. .*; is the file cut off"),
    ([ROWS[0].replace(" ]", "", 1)], "line 2: the expression opens 2 brackets and "
     "closes 1; is the file cut off"),
    ([ROWS[0][2:]], "line 2: the expression opens 6 brackets and closes 7"),
    ([ROWS[0].replace("MAX", "AVG")], r"line 2: '\[AVG' is no word of ListOps"),
    ([ROWS[0] + "7"], "line 2: an expression, a tab and a digit are needed"),
])
def test_a_damaged_line_is_named_before_training(rows, message, release):
  release(*rows)
  with pytest.raises(ValueError, match=message):
    seqio.TaskRegistry.get(FILES).source.list_shards("train")


def test_a_file_without_the_header_is_refused(release):
  release(ROWS[0], header=ROWS[1])
  with pytest.raises(ValueError, match="line 1: the release's files begin with"):
    examples(FILES, "train", LENGTHS)


def test_missing_files_and_folders_are_named(release, tmp_path):
  with pytest.raises(ValueError, match="has no 'basic_val.tsv'; put it there"):
    examples(FILES, "validation", LENGTHS)
  bind("lra_listops_files.directory", str(tmp_path / "none"))
  with pytest.raises(ValueError, match="none', which is not a folder"):
    examples(FILES, "train", LENGTHS)
  bind("lra_listops_files.directory", None)
  with pytest.raises(ValueError, match="SYNTHESIZER_MTF_LRA_LISTOPS is None"):
    examples(FILES, "train", LENGTHS)
