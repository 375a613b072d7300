"""The answers of the ability tasks, computed again from their texts."""

import collections
import itertools

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
import seqio
from studies.tasks import ability
from studies.tasks import ability_positions
from studies.tasks import ability_recall
from studies.tasks import ability_selection
import tensorflow.compat.v1 as tf

LENGTHS = {"inputs": 64, "targets": 64}


def pairs(words):
  return dict(zip(words[::2], words[1::2]))


# A function for each task: the answer, from the words before it and the inputs.
def recall(words, _):
  return pairs(words[:16])[words[-1]]


def two_hops(words, _):
  found = pairs(words[:24])
  return found[found[words[-1]]]


def induction(words, _):
  return words[words.index(words[-1]) + 1]


def selective_copying(words, _):
  text = words[:words.index("=")]
  return [word for word in text if word != "."][len(words) - len(text) - 1]


def memorization(words, _):
  rng = np.random.default_rng(0)
  return f"v{rng.integers(60, size=60)[int(words[-1][1:])]}"


def parity(words, _):
  bits = words[:words.index("=")]
  return ("even", "odd")[bits[:len(words) - len(bits)].count("1") % 2]


def most_frequent(words, _):
  (first, most), (_, next_most) = collections.Counter(words[:-1]).most_common(2)
  assert most > next_most
  return first


def first_last(_, inputs):
  assert inputs.count(inputs[0]) == 2
  return "yes" if inputs[0] == inputs[-1] else "no"


def same_offset(_, inputs):
  apart = [
      len(inputs) - 1 - inputs[::-1].index(name) - inputs.index(name)
      for name, count in collections.Counter(inputs).items() if count == 2]
  assert len(apart) == 4
  assert len({distance == 5 for distance in apart}) == 1
  return "yes" if apart[0] == 5 else "no"


def missing(_, inputs):
  absent, = {f"a{number}" for number in range(24)} - set(inputs)
  assert len(inputs) == 24
  return absent


def reverse(words, inputs):
  return inputs[-1 - len(words)]


def look_up(words, inputs):
  return pairs(inputs)[f"k{len(words)}"]


ANSWERS = {f"synth_ability_{answer.__name__}": answer for answer in (
    recall, two_hops, induction, selective_copying, memorization, parity,
    most_frequent, first_last, same_offset, missing, reverse, look_up)}
every_task = pytest.mark.parametrize("name", ANSWERS)
MAKES = {
    make.__name__: make for module in (ability_positions, ability_recall,
                                       ability_selection)
    for make in vars(module).values()
    if isinstance(make, type) and issubclass(make, ability.Ability)
    and not make.__name__.startswith("_")}
MAKES_BY_NAME = {make().parameter.partition(".")[0][8:]: make
                 for make in MAKES.values()}


def read(name, split, count=None, seed=1, shuffle=True):
  task = seqio.TaskRegistry.get(name)
  data = task.get_dataset({key: LENGTHS[key] for key in task.output_features}, split,
                          shuffle=shuffle, seed=seed)
  return list(data.take(count or ability.HELD_OUT).as_numpy_iterator())


def words_of(name, row, key):
  vocabulary = seqio.TaskRegistry.get(name).output_features[key].vocabulary
  return vocabulary.decode(row[key].tolist()).split()


def whole(row):
  return tuple(itertools.chain(*(row[key].tolist() for key in sorted(row))))


def test_there_is_a_test_for_each_task():
  assert set(ANSWERS) == {name for name in seqio.TaskRegistry.names()
                          if name.startswith("synth_ability_")}


@every_task
def test_answers_are_right_and_only_answers_are_predicted(name):
  check_answers(name)


def check_answers(name):
  for row in read(name, "train", 50):
    inputs = words_of(name, row, "inputs") if "inputs" in row else []
    words = words_of(name, row, "targets")
    assert len(words) == len(row["targets"])
    asked = [index for index, number in enumerate(row["targets"]) if number > 0]
    assert asked
    for index in asked:
      assert words[index] == ANSWERS[name](words[:index], inputs)
    if MAKES_BY_NAME[name.removeprefix("synth_ability_")].is_decoded:
      assert len(asked) == len(words)


@every_task
def test_no_example_comes_twice_and_none_held_out_is_trained_on(name):
  made = MAKES_BY_NAME[name.removeprefix("synth_ability_")]()
  found = []
  for split, count in (("train", 2000), ("validation", 1000), ("test", 1000)):
    blocks, rows = ability.examples(made, split, 1), []
    while len(rows) < count:
      block = next(blocks)
      rows += [np.concatenate(each).tobytes() for each in zip(*block.values())]
    found += rows[:count]
    assert split == "train" or (len(rows) == count and not list(blocks))
  assert len(set(found)) == len(found) == 4000


def test_held_out_examples_are_not_trained_on_even_if_examples_are_few(monkeypatch):
  monkeypatch.setattr(ability, "HELD_OUT", 4)
  monkeypatch.setattr(ability, "_FEWEST", 16)
  few = ability_positions.Parity(length=5)
  held_out = {row.tobytes() for split in ("validation", "test")
              for rows in ability.examples(few, split, None) for row in rows["targets"]}
  blocks, trained = ability.examples(few, "train", 1), []
  with pytest.raises(ValueError, match="all 32 different examples of it are used up"):
    for rows in blocks:
      trained += [row.tobytes() for row in rows["targets"]]
  assert len(held_out) == 8
  assert len(trained) == len(set(trained)) == 24
  assert not held_out & set(trained)


def test_held_out_examples_do_not_depend_on_the_seed_and_training_does():
  name = "synth_ability_recall"
  assert list(map(whole, read(name, "test", seed=1))) == list(
      map(whole, read(name, "test", seed=2, shuffle=False)))
  first, again, other = (list(map(whole, read(name, "train", 8, seed)))
                         for seed in (1, 1, 2))
  assert first == again != other


SHORTEST = {"recall": 3, "two_hops": 3, "look_up": 3, "memorization": 9, "reverse": 9,
            "induction": 12, "selective_copying": 17, "parity": 17,
            "most_frequent": 17, "first_last": 17, "same_offset": 22}


@pytest.mark.parametrize("name", SHORTEST)
def test_sizes_vary_from_the_shortest_on(name):
  gin.parse_config(f"ability_{name}.shortest = {SHORTEST[name]}")
  sizes = {len(whole(row)) for row in read(f"synth_ability_{name}", "train", 200)}
  assert len(sizes) == len(MAKES_BY_NAME[name]().sizes) > 2
  if name not in ("recall", "two_hops"):  # They expect the default size.
    check_answers(f"synth_ability_{name}")


@pytest.mark.parametrize("make", MAKES.values())
def test_a_blind_guess_scores_the_chance_level(make):
  made = make()
  rows = made.draw(np.random.default_rng(3), 1500, made.sizes[-1])
  rng, right = np.random.default_rng(4), []
  answers = np.unique(rows["targets"][rows["targets"] > 0])
  for number, target in enumerate(rows["targets"]):
    for index in np.flatnonzero(target > 0):
      right.append(target[index] == rng.choice(
          candidates(made, rows, number, index, answers)))
  assert np.mean(right) == pytest.approx(made.chance, abs=0.04)


def candidates(made, rows, number, index, answers):
  """The possible guesses: the values of the example, or any answer."""
  target = rows["targets"][number]
  if isinstance(made, ability_recall.LookUp):
    return sorted(set(target) - set(target[:index]))
  if isinstance(made, ability_recall.Recall):
    return -target[1:2 * made.sizes[-1]:2]
  if isinstance(made, ability_recall.TwoHops):
    text = -target[:4 * made.sizes[-1]]
    return text[text >= ability.FIRST + 2 * made.alphabet]
  if isinstance(made, ability_recall.Induction):
    return sorted(set(-target[:16]) - set(abs(target[16:index])))
  return answers


BAD = {
    "ability_recall.pairs = 17": "`ability_recall.pairs` is 17, but "
                                 "`ability_recall.alphabet` allows no more than 16",
    "ability_recall.questions = 0": "must be a positive integer",
    "ability_two_hops.shortest = 7": "`ability_two_hops.shortest` is 7, but "
                                     "`ability_two_hops.pairs` allows no more than 6",
    "ability_induction.length = 40": "`ability_induction.alphabet` allows no more than",
    "ability_induction.piece = 17": "`ability_induction.length` allows no more than 16",
    "ability_selective_copying.letters = 25": "allows no more than 24",
    "ability_memorization.alphabet = 9": "allows no more than 9",
    "ability_parity.length = 16": "makes only 65,536 different examples",
    "ability_same_offset.offset = 22": "allows no more than 0",
    "ability_same_offset.alphabet = 12": "allows no more than 16",
    "ability_first_last.length = 2.5": "must be an integer of at least 3",
    "ability_missing.alphabet = 1": "must be an integer of at least 2",
    "ability_look_up.pairs = 'x'": "must be an integer",
    "ability_look_up.pairs = 17": "`ability_look_up.alphabet` allows no more than 16",
    "ability_most_frequent.length = 80": "makes targets of 82 ids, but "
                                         "`utils.run.sequence_length` gives them 64",
}


@pytest.mark.parametrize("line", BAD)
def test_parameters_that_contradict_each_other_are_refused_before_training(line):
  gin.parse_config(line)
  name = f"synth_{line.partition('.')[0]}"
  task = seqio.TaskRegistry.get(name)
  with pytest.raises(ValueError) as error:
    task.get_dataset({key: LENGTHS[key] for key in task.output_features}, "train")
  assert BAD[line] in str(error.value)


@every_task
def test_a_wrong_answer_that_is_decoded_scores_as_wrong(name):
  task = seqio.TaskRegistry.get(name)
  if not MAKES_BY_NAME[name.removeprefix("synth_ability_")].is_decoded:
    assert not task.metric_fns  # Mode `eval` would decode the questions, too.
    return
  metric, = task.metric_fns
  wanted = [" ".join(words_of(name, row, "targets")) for row in read(name, "test", 4)]
  wrong = " ".join(["never", *wanted[1].split()[1:]])
  length = len(wanted[1].split())
  found = metric(wanted, [wanted[0], wrong, f"{wanted[2]} a1", ""])
  assert found["accuracy"] == pytest.approx(100 * (1 - (1 / length + 1) / 4))
  assert found["sequence_accuracy"] == 50
  assert 0 < found["chance"] < 51


class Scripted(transformer.Unitransformer):
  """Predicts all targets, except the first answer of every second example."""

  def call_simple(self, inputs, targets, compute_loss, **unused_kwargs):
    batch, length = targets.shape.dims[-2:]
    asked = mtf.cast(mtf.greater(targets, 0), tf.int32)
    is_first = mtf.equal(mtf.cumsum(asked, length) * asked, 1)
    is_odd = mtf.equal(mtf.mod(mtf.range(targets.mesh, batch, tf.int32), 2), 1)
    is_wrong = mtf.cast(mtf.logical_and(is_first, is_odd), tf.int32)
    logits = mtf.one_hot(mtf.abs(targets) + is_wrong, self.output_vocab_dim)
    return logits, mtf.reduce_mean(logits)


def test_a_wrong_answer_of_a_language_model_scores_as_wrong(tmp_path):
  task = seqio.TaskRegistry.get("synth_ability_recall")
  vocabulary = task.output_features["targets"].vocabulary
  model = Scripted(None, d_model=3, input_vocab_size=40, output_vocab_size=40,
                   autoregressive=True, max_length=32)
  model_fn = utils.tpu_estimator_model_fn(
      "lm", model, vocabulary, str(tmp_path), False, mtf.convert_to_shape("all:1"),
      mtf.convert_to_layout_rules(""), 8, {"targets": 32}, False, 1, 1)
  with tf.Graph().as_default(), tf.Session() as session:
    rows = task.get_dataset({"targets": 32}, "test", shuffle=False).batch(8)
    tf.train.get_or_create_global_step()
    row = tf.data.make_one_shot_iterator(rows).get_next()
    spec = model_fn({"targets": tf.ensure_shape(row["targets"], [8, 32])}, None,
                    tf.estimator.ModeKeys.EVAL, {})
    function, tensors = spec.eval_metrics
    found = function(*tensors)
    session.run(tf.local_variables_initializer())
    session.run([update for _, update in found.values()])
    values = session.run({name: value for name, (value, _) in found.items()})
  assert values["num_eval_tokens"] == 8 * 8
  assert values["token_accuracy"] == pytest.approx(1 - 4 / 64)
  assert values["sequence_accuracy"] == 0.5
