"""Checkpoints are evaluated while a model trains; the best is kept, patience stops."""

import contextlib
import functools
import json
import re
import shutil
import types

import gin
from mesh_tensorflow.transformer import dataset as mesh_dataset
import pytest
import seqio
from support import checkpoint_files
from support import events
from support import in_process
from support import launching
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools import best_checkpoint
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.command import arguments
from synthesizer_mtf.trainer.data import unknown_pieces
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.watching import best_folder
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import measures
from synthesizer_mtf.trainer.watching import validation
from synthesizer_mtf.trainer.watching import validation_record
import tensorflow.compat.v1 as tf


@gin.configurable
def inputs_alone(sequence_length, vocabulary, dataset_split):
  del sequence_length, vocabulary, dataset_split
  data = tf.data.Dataset.from_tensors({"inputs": [7, 1]})
  return [("alone", lambda: data, None, [])]


METRIC = "train_and_eval.metric = 'sequence_accuracy'"  # 0 for so small a model.
FILES = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
         "learning_rate_schedules/constant_0_001.gin", "train_and_eval.gin"]
BINDINGS = [METRIC, "train_and_eval.patience = 1", "utils.run.keep_checkpoint_max = 1",
            "utils.run.save_checkpoints_steps = 2", "utils.run.train_steps = 40",
            launching.ONE_STACK]


@pytest.fixture(scope="module")
def command(tmp_path_factory, sentencepiece_model):
  return in_process.Command(tmp_path_factory.mktemp("validation"), sentencepiece_model)


def train(command, *bindings):
  return command.run("model", *FILES, bindings=[*BINDINGS, *bindings])


def read_record(folder):
  return json.loads((folder / "validation.json").read_text())


def steps_in(record):
  return [evaluation["step"] for evaluation in record["evaluations"]]


@pytest.mark.usefixtures("parsed_flags")
def test_the_best_checkpoint_stays_and_patience_ends_the_training(
    command, capsys):
  folder = command.folder / "model"
  assert not train(command)
  record = read_record(folder)
  assert steps_in(record) == [2, 4]
  assert record["best"]["checkpoint"] == "best/model.ckpt-2"
  assert record["stopped_at"] == validation_record.stopped_at(str(folder)) == 4
  assert {path.stem for path in folder.glob("model.ckpt-*.index")} == {"model.ckpt-4"}
  assert (folder / "best/model.ckpt-2.index").exists()
  assert not train(command)  # There is nothing to train.
  assert read_record(folder) == record
  assert not train(command, "utils.run.train_steps = 4")  # So patience ended nothing.
  assert read_record(folder) == {**record, "stopped_at": None}
  values = events.scalars(folder / "eval_synth_text_pairs_validation")
  assert values["loss"] == pytest.approx(-values["neg_log_perplexity"])
  best_checkpoint.main([str(folder), "--metric=neg_log_perplexity"])
  *_, last = capsys.readouterr().out.strip().splitlines()
  assert last.startswith("The best by eval_synth_text_pairs_validation: neg_log")
  assert ", the greatest: " in last
  for flags, which in (([], "least"), (["--greater_is_better"], "greatest")):
    best_checkpoint.main([str(folder), "--metric=loss", *flags])
    assert f", the {which}: " in capsys.readouterr().out
  (command.folder / "dev.tsv").write_text("another\tfile\n")
  assert not train(command, "utils.run.train_steps = 4")
  assert steps_of(folder / "best.1") == [2]
  assert read_record(folder / "best.1") == {**record, "stopped_at": None}
  assert read_record(folder)["best"]["step"] == 4
  for path in (folder / "best").glob("*.data-*"):
    path.unlink()
  for path in folder.glob("model.ckpt-4.*"):
    path.rename(folder / path.name.replace("-4.", "-5."))
  assert "lacks model.ckpt-4, the best by sequence_accuracy" in train(command)


@pytest.mark.usefixtures("parsed_flags")
@pytest.mark.parametrize("binding, message", [
    ("train_and_eval.patience = 0", "`train_and_eval.patience` is 0 but must be"),
    ("train_and_eval.every_steps = 1", "every_steps` is 1, but `utils.run.save_"),
    ("train_and_eval.metric = 'blue'", "'blue', which no task has; .*'bleu'"),
    ("train_and_eval.split = 'dev'", "`train_and_eval.split` is 'dev'"),
    ("mesh_eval_dataset_fn.pack = True", "pack` is True, but `train_and_eval.metric`"),
    ("train_and_eval.eval_dataset_fn = @inputs_alone", "'alone', which has no ta")])
def test_a_wrong_parameter_is_one_sentence_before_any_step(command, binding, message):
  assert re.search(message, command.run(
      "wrong", *FILES, bindings=[*BINDINGS, binding]))


def record(folder, *values, greater_is_better=True):
  made = validation_record.Record(str(folder), "bleu", greater_is_better)
  for number, value in enumerate(values):
    made.add(10 * number, value, {"task/bleu": value})
  return made


NAN = float("nan")


@pytest.mark.parametrize("greater, values, best", [
    (True, [1.0, 3.0, 3.0, 2.0], 10), (False, [2.0, 1.0, 3.0], 10),
    (True, [NAN, NAN, 1.0, 2.0, NAN], 30), (False, [NAN, NAN, 1.0, 2.0, NAN], 20)])
def test_the_first_of_equal_values_is_the_best_and_never_nan(
    tmp_path, greater, values, best):
  made = record(tmp_path, *values, greater_is_better=greater)
  assert (made.best["step"], made.since_best) == (best, len(values) - 1 - best // 10)
  assert best_checkpoint.best({10 * i: x for i, x in enumerate(values)},
                              not greater) == best


def test_the_end_by_patience_is_forgotten_when_training_goes_on(tmp_path):
  assert validation_record.stopped_at(str(tmp_path)) is None
  record(tmp_path, 1.0).write(stopped_at=20)
  assert validation_record.stopped_at(str(tmp_path)) == 20
  again = record(tmp_path)
  again.forget_after(-1)
  again.correct(None)
  assert validation_record.stopped_at(str(tmp_path)) is None
  assert not steps_in(read_record(tmp_path))


@pytest.mark.parametrize("metric, low", [
    *((name, True) for name in (
        "mean_edit", "ppl", "nll", "mse", "wer", "cer", "ter", "edit_distance", "mae",
        "task/perplexity_per_word", "eval_loss", "WER", "meanEditDistance", "rmse",
        "neg_log_likelihood", "bits_per_byte", "error rate", "log-perplexity")),
    *((name, False) for name in (
        "neg_log_perplexity", "bleu", "closest", "interest", "center", "skill",
        "neg_mean_squared_error", "edit_similarity", "letter_accuracy", "lossless",
        "cer/bleu", "mirrors", "error_free", "levenshtein_ratio", "certain"))])
def test_the_words_of_a_metrics_name_say_whether_its_least_value_is_the_best(
    metric, low, log):
  assert measures.is_low(metric) == low
  for greater, sign, said in (
      (None, not low, low), (True, True, low), (False, False, True)):
    gin.clear_config()
    log.clear()
    gin.parse_config([f"train_and_eval.metric = {metric!r}",
                      "train_and_eval.eval_dataset_fn = @inputs_alone",
                      f"train_and_eval.greater_is_better = {greater}"][:2 + (
                          greater is not None)])
    chosen = validation.bound()
    assert chosen._greater == gin.query_parameter(
        "train_and_eval.greater_is_better") == sign
    chosen._say_which()
    assert ("is the best" in log.text) == said


def test_evaluations_after_the_step_to_continue_from_do_not_count_but_the_best_stays(
    tmp_path):
  gone_back = record(tmp_path, 1.0, 2.0, 3.0)
  gone_back.forget_after(10)
  assert gone_back.last == 10 and 20 not in gone_back.steps
  assert gone_back.best == {"step": 20, "value": 3.0, "left_at": 10}
  assert not gone_back.add(20, 2.5, {}) and gone_back.since_best == 0
  assert gone_back.best["left_at"] == 10
  assert gone_back.add(30, 3.5, {}) and gone_back.best == {"step": 30, "value": 3.5}


MEASURE = {"metric": "bleu", "greater_is_better": True, "split": "validation",
           "data": {"task": {"number": 2, "sha256": "1"}},
           "decoding": {"beam_size": 1, "alpha": .6}}


@pytest.mark.parametrize("change, said", [
    ({"metric": "wer", "greater_is_better": False}, "'metric' was 'bleu' and is 'wer'"),
    ({"greater_is_better": False}, "'greater_is_better' was True and is False"),
    ({"split": "test"}, "'split' was 'validation' and is 'test'"),
    ({"data": {"other": {"number": 2, "sha256": "1"}}}, "were task and are other"),
    ({"data": {"task": {"number": 3, "sha256": "2"}}}, "had 2 examples and has 3"),
    ({"data": {"task": {"number": 2, "sha256": "2"}}}, "task has other examples"),
    ({"decoding": {"beam_size": 4, "alpha": .6}}, "'beam_size' was 1 and is 4")])
def test_values_of_another_measure_are_not_compared(tmp_path, change, said):
  before = record(tmp_path, 1.0)
  assert not before.continues(MEASURE)
  before.write()
  again = record(tmp_path)
  assert not again.continues(MEASURE) and again.steps
  differing = again.continues({**MEASURE, **change})
  assert said in differing[0]
  again.begin({**MEASURE, **change})
  assert again.best is None and not again.steps


def test_a_record_of_version_0_2_goes_on_unless_it_chose_the_other_end_or_is_damaged(
    tmp_path):
  (tmp_path / "validation.json").write_text(json.dumps({
      "metric": "wer", "best": {"step": 4, "value": 9.0}, "stopped_at": None,
      "evaluations": [{"step": 2, "value": 3.0, "results": {}},
                      {"step": 4, "value": 9.0, "results": {}}]}))
  measure = {**MEASURE, "metric": "wer"}
  assert not validation_record.Record(str(tmp_path), "wer").continues(measure)
  low = validation_record.Record(str(tmp_path), "wer", greater_is_better=False)
  assert "was True" in low.continues({**measure, "greater_is_better": False})[0]
  (tmp_path / "validation.json").write_text("{")
  with pytest.raises(ValueError, match="cannot be read"):
    record(tmp_path)


class Scripted(validation.Validation):
  """A validation whose values are given by step, of checkpoints without a model."""

  def __init__(self, folder, values, examples=((1, 2),), metric="bleu"):
    super().__init__(
        None, metric, not measures.is_low(metric), None, None, "validation")
    self._values, self.examples = values, examples
    self.training = callbacks.Training(str(folder), 100)
    self.for_model(types.SimpleNamespace(
        model_dir=str(folder),
        config=types.SimpleNamespace(save_checkpoints_steps=2)), None, None, 1)

  def start_at(self, step):
    self.training.continue_from(f"{self._folder}/model.ckpt-{step}")
    self.start(self.training)

  def _check_place(self):
    pass

  def _check_metric(self):
    pass

  def _datasets(self):
    return []

  def _measure(self, datasets):
    return {**super()._measure(datasets), "data": {"task": {
        "number": len(self.examples), "sha256": str(self.examples)}}}

  def _results(self, datasets, path, step):
    yield f"task/{self._metric}", self._values[step]


def index(folder, step):
  return (folder / f"model.ckpt-{step}.index").read_bytes()


def save_alone(folder, step):
  """Saves a checkpoint of a step; others go, as with `keep_checkpoint_max = 1`."""
  for path in folder.glob("model.ckpt-*"):
    path.unlink()
  checkpoint_files.save(folder, step)


def start_at(folder, step, value=None, **change):
  """Starts a training at a checkpoint, which it evaluates if that has a value."""
  save_alone(folder, step)
  Scripted(folder, {} if value is None else {step: value}, **change).start_at(step)


def steps_of(folder):
  return [complete.saved_step(path) for path in complete.find(str(folder))]


def test_the_best_checkpoint_stays_though_training_goes_back(tmp_path, log):
  start_at(tmp_path, 8, 9.0)
  kept = index(tmp_path, 8)
  save_alone(tmp_path, 4)  # The newest was damaged, and another one was brought back.
  again = Scripted(tmp_path, {4: 3.0, 6: 5.0, 8: 8.0, 10: 10.0})
  again.start_at(4)
  assert "best still holds step 8, whose bleu is 9, though training went" in log.text
  for step in (6, 8):
    save_alone(tmp_path, step)
    again.on_checkpoint(again.training, step)
    assert steps_of(tmp_path / "best") == [8] and index(tmp_path / "best", 8) == kept
  Scripted(tmp_path, {}).start_at(8)  # Its own step 8 is not the best.
  assert index(tmp_path / "best", 8) == kept
  save_alone(tmp_path, 10)
  again.on_checkpoint(again.training, 10)
  assert steps_of(tmp_path / "best") == [10]
  assert "best step 10 takes the place of step 8, which did not lead" in log.text


def test_a_kill_before_the_next_evaluation_does_not_hide_that_training_went_back(
    tmp_path):
  start_at(tmp_path, 8, 9.0)
  start_at(tmp_path, 1)
  start_at(tmp_path, 9, 4.0)  # Trained on, and killed.
  left = read_record(tmp_path)
  assert steps_in(left) == [9]
  assert (left["best"]["value"], left["best"]["left_at"]) == (9.0, 1)


def test_a_better_checkpoint_replaces_that_of_the_same_step_that_was_left(
    tmp_path, log):
  for value, says in ((9.0, 0), (9.5, 1)):
    start_at(tmp_path, 8, value)
    assert index(tmp_path / "best", 8) == index(tmp_path, 8)
    assert log.text.count("step 8 takes the place of step 8") == says
    Scripted(tmp_path, {6: 0.0}).start_at(6)


def test_a_best_checkpoint_that_was_left_and_is_lost_stops_nothing(tmp_path, log):
  start_at(tmp_path, 8, 9.0)
  (tmp_path / "best/model.ckpt-8.index").unlink()
  start_at(tmp_path, 4, 3.0)
  assert "lacks model.ckpt-8, the best by bleu before training went back" in log.text
  assert steps_of(tmp_path / "best") == [4]


@pytest.mark.parametrize("change", [
    {"examples": ((1, 2), (3, 4))}, {"examples": ((1, 3),)}, {"metric": "wer"}])
def test_a_new_comparison_keeps_the_best_of_the_former(tmp_path, change, log):
  start_at(tmp_path, 2, 9.0)
  for _ in range(2):
    start_at(tmp_path, 4, 1.0, **change)
    assert steps_of(tmp_path / "best") == [4]
    assert steps_of(tmp_path / "best.1") == [2]
  assert log.text.count("A new comparison of checkpoints begins") == 1
  assert read_record(tmp_path / "best.1")["best"]["value"] == 9.0
  Scripted(tmp_path, {4: 2.0}).start_at(4)
  assert steps_of(tmp_path / "best.2") == [4]


def test_a_file_that_is_replaced_while_a_model_trains_begins_a_new_comparison(tmp_path):
  running = Scripted(tmp_path, {2: 9.0, 4: 1.0})
  save_alone(tmp_path, 2)
  running.start_at(2)
  running.examples = ((5, 6),)
  save_alone(tmp_path, 4)
  running.on_checkpoint(running.training, 4)
  assert (steps_of(tmp_path / "best"), steps_of(tmp_path / "best.1")) == ([4], [2])


def letters(split, shuffle_files, seed=None):
  del split, shuffle_files, seed
  return tf.data.Dataset.from_tensor_slices({"inputs": FILE})


FILE = ["a", "b"]


def test_examples_that_are_drawn_at_random_are_compared_by_their_source(monkeypatch):
  monkeypatch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
  seqio.TaskRegistry.add(
      "drawn", seqio.FunctionDataSource(letters, splits=["validation"]),
      preprocessors=[], output_features={})

  def measured(task, noise=1.0):
    def data():
      return letters(None, None).map(
          lambda x: {**x, "noise": noise * tf.random.uniform([])})
    measure = measures.measure("bleu", True, "validation", [
        mesh_dataset.EvalDataset(task, data, None, [])], {})
    return measure["data"][task]

  with tf.Graph().as_default():
    still, drawn = measured("of nobody", 0.0), measured("drawn")
    assert measured("of nobody") == {"number": 2, "sha256": None}
    assert (measured("of nobody", 0.0), measured("drawn")) == (still, drawn)
    monkeypatch.setitem(globals(), "FILE", ["a", "c"])
    for before, now in (
        (still, measured("of nobody", 0.0)), (drawn, measured("drawn"))):
      assert before["sha256"] != now["sha256"] and before["number"] == now["number"]


def test_examples_are_read_again_only_if_their_files_or_preprocessors_change(
    tmp_path, monkeypatch):
  path, known, reads = tmp_path / "a.txt", {}, []
  read = measures._read
  monkeypatch.setattr(measures, "_read", lambda data: reads.append(data) or read(data))

  def measured(word):
    return measures.measure("bleu", True, "validation", [mesh_dataset.EvalDataset(
        "lines", lambda: tf.data.TextLineDataset(str(path)).map(
            lambda line: {"inputs": line + word}), None, [])], known)

  digests = set()
  for text, word, is_read in (("1\n2\n", "a", True), ("1\n2\n", "a", False),
                              ("1\n3\n", "a", True), ("1\n3\n", "b", True)):
    path.write_text(text)
    reads.clear()
    with tf.Graph().as_default():
      digests.add(measured(word)["data"]["lines"]["sha256"])
    assert bool(reads) == is_read
  assert len(digests) == 3


class Killed(BaseException):
  """A process ends between two operations on files, or in the middle of one."""


@contextlib.contextmanager
def killed_at(number):
  """Kills at an operation on files; a copy or a file that it writes is half there."""
  left = [number]

  def ending(function, half):
    def run(*args, **kwargs):
      left[0] -= args[1:] != () or half is not no_text  # Reading changes nothing.
      if left[0]:
        return function(*args, **kwargs)
      half(*args)
      raise Killed
    return run

  def half_a_copy(source, target, *_):
    with open(source, "rb") as read, open(target, "wb") as write:
      write.write(read.read()[:-9])

  def no_text(path, mode):
    open(path, mode).close()

  halves = {"copy": half_a_copy, "GFile": no_text, **dict.fromkeys(
      ("rename", "remove", "makedirs"), lambda *_: None)}
  with pytest.MonkeyPatch.context() as patch:
    for name, half in halves.items():
      patch.setattr(tf.io.gfile, name, ending(getattr(tf.io.gfile, name), half))
    yield


def kills(tmp_path, prepare, use):
  """Yields a folder in which `use` was killed, for each operation; at last unharmed."""
  prepared = tmp_path / "prepared"
  prepared.mkdir()
  prepare(prepared)
  for number in range(1, 100):
    folder = tmp_path / str(number)
    shutil.copytree(prepared, folder)
    try:
      with killed_at(number):
        use(folder)
    except Killed:
      yield folder
    else:
      assert number > 8
      yield folder
      return


@pytest.mark.parametrize("former, left", [(2, False), (4, True)])
def test_a_kill_at_any_moment_of_keeping_the_best_loses_nothing(tmp_path, former, left):
  def prepare(folder):
    start_at(folder, former, 1.0)
    if left:  # The step is that of a training that was left.
      Scripted(folder, {2: 0.0}).start_at(2)
    save_alone(folder, 4)

  def use(folder):
    Scripted(folder, {4: 2.0}).start_at(4)

  for folder in kills(tmp_path, prepare, use):
    best = folder / "best"
    assert left or any(best_folder.has_whole(str(folder), step) for step in (2, 4))
    use(folder)
    assert steps_of(best) == [4] and index(best, 4) == index(folder, 4)
    assert tf.train.latest_checkpoint(str(best)) == f"{best}/model.ckpt-4"
    assert read_record(folder)["best"] == {
        "step": 4, "value": 2.0, "checkpoint": "best/model.ckpt-4"}


def test_a_kill_at_any_moment_of_a_new_comparison_loses_nothing(tmp_path):
  def prepare(folder):
    start_at(folder, 2, 9.0)
    save_alone(folder, 4)

  def use(folder):
    Scripted(folder, {4: 1.0}, examples=((3, 4),)).start_at(4)

  for folder in kills(tmp_path, prepare, use):
    use(folder)
    assert steps_of(folder / "best") == [4]
    assert steps_of(folder / "best.1") == [2] and not (folder / "best.2").exists()
    assert read_record(folder / "best.1")["best"]["value"] == 9.0


def model(folder, *bindings):
  return synthesizer_mtf.MtfModel(
      model_dir=str(folder), tpu=None, batch_size=4, extra_gin_bindings=[*bindings],
      sequence_length={"inputs": 8, "targets": 6})


def replace(monkeypatch, name, function):
  """Replaces a method of T5's class, which ours calls."""
  stock = synthesizer_mtf.MtfModel.__base__
  original = getattr(stock, name)
  monkeypatch.setattr(stock, name, functools.wraps(original)(
      lambda self, *_, **__: function(self)))


def test_python_has_the_validation_of_its_argument_and_not_of_the_model_to_start_from(
    tmp_path, monkeypatch):
  monkeypatch.setattr(unknown_pieces, "log", lambda *_: None)
  seen = []
  replace(monkeypatch, "train", lambda self: seen.append(
      [gin_files.bound(f"train_and_eval.{name}", None)
       for name in ("eval_dataset_fn", "metric", "patience")]))
  checkpoint_files.save(tmp_path, 4)
  (tmp_path / "operative_config.gin").write_text(
      "import t5.models\ntrain_and_eval.eval_dataset_fn = @mesh_eval_dataset_fn\n"
      "train_and_eval.metric = 'bleu'\ntrain_and_eval.patience = 7\n")
  start = "synth_text_pairs", 2, str(tmp_path)
  model(tmp_path / "new").finetune(*start)
  model(tmp_path / "new").finetune(*start, validation={"patience": 3})
  model(tmp_path / "new").train("synth_text_pairs", 2)
  assert seen[0][0] is seen[2][0] is None and seen[1][0] is not None
  assert seen[1][1:] == [None, 3]  # The metric is that of no binding.
  for wrong, said in (("bleu", "`validation` is 'bleu' but must be a dict"),
                      ({"metrics": "bleu"}, "names 'metrics', .* one of metric,")):
    with pytest.raises(ValueError, match=said):
      model(tmp_path / "new").train("synth_text_pairs", 2, validation=wrong)
  with arguments.naming("train"):
    with pytest.raises(ValueError, match=r"`validation\['patience'\]` is 0 but must"):
      validation.chosen(patience=0)


def test_python_gives_the_answers_that_the_bindings_of_the_model_ask_for(
    tmp_path, monkeypatch):
  seen = []

  def predict(self):
    self.estimator(seqio.ByteVocabulary())
    seen.append((answers.bound(), gin_files.bound("infer_model.decode_fn", None)))

  replace(monkeypatch, "predict", predict)
  for name, text in (("lines", "one\n"), ("operative_config.gin", ""),
                     ("model.ckpt-7.index", "")):
    (tmp_path / name).write_text(text)
  gin_files.parse(["models/laptop.gin"], ["num_layers = 1"])
  for bindings in (["synthesizer_answers.number = 2"], []):
    model(tmp_path, *bindings).predict(str(tmp_path / "lines"), str(tmp_path / "out"))
  assert seen[0][0] == 2 and seen[0][1].__module__ == answers.__name__
  assert seen[1] == (None, None)
