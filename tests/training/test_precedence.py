"""The strongest place that sets a parameter wins, wherever, and in every mode.

A case draws where each of twelve parameters is set, a mode, and a way in; what runs is
compared with the one rule of docs/settings.md. The methods of T5 run until they make an
estimator, or read targets. For other cases, and more of them:

  CASES=2000 SEED=1 python -m pytest -q tests/training/test_precedence.py -k strongest
"""

import argparse
import contextlib
import json
import os
import random
import shutil
from typing import NamedTuple

from absl.testing import flagsaver
import gin
from mesh_tensorflow.transformer import utils
import pytest
import seqio
from support import checkpoint_files
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import launcher
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.trainer.command import precedence
from synthesizer_mtf.trainer.data import unknown_pieces
from t5.models import mesh_transformer
import t5.models.utils
import tensorflow.compat.v1 as tf

TASK = "synth_text_pairs"
PAIRS = "synthesizer_mtf.tasks.pairs."
DECODE = "Bitransformer.decode."
# From strong to weak. A person binds in gin later than, in the texts of, and in the
# files of `gin_files.parse`.
PLACES = ["argument", "extra", "later", "text", "file", "record", "environment"]
WAYS = {"MtfModel": PLACES, "tool": ["text", "file", "record", "environment"],
        "command": ["text", "file", "record", "environment"],
        "model_api": ["argument", "text", "file", "record", "environment"]}
MODES = ["train", "finetune", "eval", "predict", "score", "export"]
ATTENTIONS = ["D", "R", "T", "FR", "FD", "V", "R+V"]


class Parameter(NamedTuple):
  """A parameter to set.

  Attributes:
    name: its name in gin.
    value: a function from the number of a place, and a folder, to a value.
    read: a function that returns what runs, from a stack's scope.
    argument: its name as an argument of `MtfModel`, or of `predict` and `export`.
    variable: the environment variable that sets it.
    scoped: whether a record binds it for the encoder and the decoder.
  """
  name: str
  value: object
  read: object
  argument: str | None = None
  variable: str | None = None
  scoped: bool = False


def _files(split):
  return lambda scope: seqio.TaskRegistry.get(TASK).source.files(split)[1]


def _bound(name):
  return lambda scope: gin_files.bound(name, None)


def _in_scope(selector, name):
  def read(scope):
    with gin.config_scope(scope):
      return gin.get_bindings(selector).get(name)
  return read


def _path(i, folder):
  return f"{folder}/{PLACES[i]}.tsv"


def _metric_names(scope):
  return [metric.__name__ for metric in seqio.TaskRegistry.get(TASK).metric_fns]


METRICS = ["accuracy", "bleu", "edit_distance", "overlap", "rouge", "meteor"]
PARAMETERS = [
    Parameter(f"{PAIRS}train", _path, _files("train"),
              variable="SYNTHESIZER_MTF_PAIRS_TRAIN"),
    Parameter(f"{PAIRS}validation", _path, _files("validation"),
              variable="SYNTHESIZER_MTF_PAIRS_VALIDATION"),
    Parameter(f"{PAIRS}metrics", lambda i, _: METRICS[i % 6], _metric_names),
    Parameter(vocabulary.PARAMETER, lambda i, folder: f"{folder}/{PLACES[i]}.model",
              lambda scope: vocabulary._chosen()[1], variable=vocabulary.VARIABLE),
    Parameter(f"{DECODE}beam_size", lambda i, _: 3 + i, _bound(f"{DECODE}beam_size"),
              "beam_size"),
    Parameter(f"{DECODE}temperature", lambda i, _: .1 + i / 10,
              _bound(f"{DECODE}temperature"), "temperature"),
    Parameter(f"{DECODE}sampling_keep_top_k", lambda i, _: 5 + i,
              _bound(f"{DECODE}sampling_keep_top_k"), "keep_top_k"),
    Parameter(f"{DECODE}max_decode_length", lambda i, _: 20 + i,
              _bound(f"{DECODE}max_decode_length")),
    Parameter("synthesizer_decode_length.tokens", lambda i, _: 30 + i,
              _bound("synthesizer_decode_length.tokens")),
    Parameter("dropout_rate", lambda i, _: .01 + i / 100, _bound("%dropout_rate")),
    Parameter("SyntheticAttention.dropout_rate", lambda i, _: .02 + i / 100,
              _in_scope("SyntheticAttention", "dropout_rate"), scoped=True),
    Parameter("synthesizer_stack.attention", lambda i, _: ATTENTIONS[i],
              _in_scope("synthesizer_stack", "attention"), "attention", scoped=True),
    Parameter("d_model", lambda i, _: 16 + 8 * i, _bound("%d_model"))]
OF_DECODING = {"beam_size", "temperature", "keep_top_k"}
DECIDE_SHAPES = {"synthesizer_stack.attention", "d_model"}


class Case(NamedTuple):
  way: str
  mode: str
  places: dict  # From names of parameters to the numbers of their places.


def drawn(number):
  draw = random.Random(f"{os.environ.get('SEED', 0)} {number}")
  way = draw.choice(["MtfModel"] * 6 + ["tool", "command", "model_api", "model_api"])
  mode = draw.choice(MODES) if way == "MtfModel" else "predict"
  places = {}
  for parameter in PARAMETERS:
    possible = [i for i, place in enumerate(PLACES)
                if place in WAYS[way] and _can(parameter, place, way, mode)]
    chosen = draw.sample(possible, draw.randint(0, min(3, len(possible))))
    record = PLACES.index("record")
    if parameter.name in DECIDE_SHAPES and draw.random() < .8 and record in chosen:
      chosen = [record]  # Otherwise most cases would be refused.
    if parameter.variable and not chosen:
      chosen = [record]  # Each run needs files.
    places[parameter.name] = sorted(chosen)
  places[f"{DECODE}{draw.choice(['beam_size', 'temperature'])}"] = []
  return Case(way, mode, places)


def _can(parameter, place, way, mode):
  if place == "environment":
    return parameter.variable is not None
  if place != "argument":
    return True
  if parameter.argument in OF_DECODING:
    return mode in ("predict", "export")
  return parameter.argument is not None and way == "MtfModel"


class Stop(Exception):
  """Ends a run where its settings have been read."""


class Run:
  """A run of a case, with what it would have used."""

  def __init__(self, case, folder, paths):
    self.case, self.folder, self.seen = case, folder, []
    self.by_place = {place: {
        p.name: p.value(i, paths) for p in PARAMETERS if i in case.places[p.name]}
                     for i, place in enumerate(PLACES)}

  def see(self, *_, **__):
    self.seen.append({(p.name, scope): p.read(scope) for p in PARAMETERS
                      for scope in ("encoder", "decoder")
                      if p.variable is None or _is_set(self.case, p)})

  def stop(self, *_, **__):
    self.see()
    raise Stop

  def targets(self, predict_or_score_fn, **kwargs):
    """As T5's `run_eval`, which reads targets before a model predicts."""
    self.see()
    predict_or_score_fn(tasks=[], vocabulary=None, checkpoint_step=4,
                        sequence_length={"inputs": 8, "targets": 8})

  def lines(self, *places):
    return [f"{name} = {value!r}" for place in places
            for name, value in self.by_place[place].items()]

  def start(self):
    (self.folder / "model").mkdir(exist_ok=True)
    scoped = {p.name for p in PARAMETERS if p.scoped}
    self.record = self.folder / "model" / "operative_config.gin"
    self.record.write_text("\n".join([
        f"MIXTURE_NAME = '{TASK}'", f"{PAIRS}test = None", "get_vocabulary."
        "mixture_or_task_name = %MIXTURE_NAME", "encoder/RandomLogits.stddev = 1.0",
        *(f"{scope}{name} = {value!r}"
          for name, value in self.by_place["record"].items()
          for scope in (("encoder/", "decoder/") if name in scoped else [""]))]))
    self.own = self.folder / "own.gin"
    self.own.write_text("\n".join(self.lines("file")))
    getattr(self, f"by_{self.case.way}")()

  def by_tool(self):
    trained_model.configure(str(self.folder / "model"), argparse.Namespace(
        gin_file=["models/laptop.gin", str(self.own)], gin_param=self.lines("text"),
        module_import=[], step=None))
    self.stop()

  def by_command(self):
    self._launch(["dataset.gin", "models/laptop.gin", str(self.record), str(self.own),
                  "cpu.gin"])

  def by_model_api(self):
    (self.folder / "lines").write_text("a\n")
    arguments = {p.argument: self.by_place["argument"][p.name] for p in PARAMETERS
                 if p.name in self.by_place["argument"]}
    self._launch(["models/laptop.gin", str(self.own)], use_model_api=True,
                 mode="predict", input_file=str(self.folder / "lines"),
                 output_file=str(self.folder / "out"), **arguments)

  def _launch(self, files, **flags):
    gin.clear_config()
    with flagsaver.flagsaver():
      for name, value in {"model_dir": str(self.folder / "model"), "gin_file": files,
                          "gin_param": self.lines("text"), **flags}.items():
        gin_files.flags.FLAGS[name].value = value
        gin_files.flags.FLAGS[name].using_default_value = False
      launcher.main([""])

  def by_MtfModel(self):
    gin_files.parse(["models/laptop.gin", str(self.own)], self.lines("text"))
    with gin.unlock_config():
      gin.parse_config("\n".join(self.lines("later")))
    arguments = {p.argument: self.by_place["argument"][p.name] for p in PARAMETERS
                 if p.name in self.by_place["argument"]}
    of_call = {name: value for name, value in arguments.items() if name in OF_DECODING}
    name = "new" if self.case.mode == "finetune" else "model"
    model = synthesizer_mtf.MtfModel(
        model_dir=str(self.folder / name), tpu=None, batch_size=4,
        sequence_length={"inputs": 8, "targets": 8},
        extra_gin_bindings=self.lines("extra"),
        **{name: arguments[name] for name in arguments.keys() - OF_DECODING})
    before = gin.config_str()
    lines = self.folder / "lines"
    lines.write_text("a\n")
    try:
      {"train": lambda: model.train(TASK, 9),
       "finetune": lambda: model.finetune(TASK, 9, str(self.folder / "model")),
       "eval": lambda: model.eval(TASK, -1),
       "predict": lambda: model.predict(str(lines), str(self.folder / "out"),
                                        **of_call),
       "score": lambda: model.score(mixture_or_task_name=TASK,
                                    mixture_or_task_split="validation"),
       "export": lambda: model.export(str(self.folder / "exported"), **of_call),
       }[self.case.mode]()
    finally:
      assert gin.config_str() == before


def _is_set(case, parameter):
  return bool(case.places[parameter.name])


def expected(run):
  """What the rule says: {name: value}, without what nobody sets."""
  values = {}
  for parameter in PARAMETERS:
    for place in PLACES:
      if parameter.name in run.by_place[place]:
        values[parameter.name] = run.by_place[place][parameter.name]
        break
  return values


def refused(run):
  """The parameters whose values would change the shapes of restored variables."""
  names = DECIDE_SHAPES - ({"synthesizer_stack.attention"}
                           if run.case.mode == "finetune" else set())
  recorded, won = run.by_place["record"], expected(run)
  return {name for name in names if name in recorded and won[name] != recorded[name]}


@pytest.fixture(scope="module")
def paths(tmp_path_factory, sentencepiece_model):
  """A folder with files for each place, and a checkpoint in the folder model."""
  folder = tmp_path_factory.mktemp("places")
  for place in PLACES:
    (folder / f"{place}.tsv").write_text("a\tb\n")
    shutil.copy(sentencepiece_model, folder / f"{place}.model")
  (folder / "model").mkdir()
  checkpoint_files.save(folder / "model", 4)
  return folder


def check(number, folder, paths, monkeypatch):
  case = drawn(number)
  run = Run(case, folder, paths)
  for parameter in PARAMETERS:
    if parameter.variable:
      monkeypatch.delenv(parameter.variable, raising=False)
  for parameter in PARAMETERS:
    if parameter.name in run.by_place["environment"]:
      monkeypatch.setenv(parameter.variable,
                         run.by_place["environment"][parameter.name])
  for owner, name, function in [
      (unknown_pieces, "log", lambda *_: None),
      (utils, "get_estimator", run.stop), (utils, "run", run.stop),
      (t5.models.utils, "run_eval", run.targets)]:
    monkeypatch.setattr(owner, name, function)
  wrong = refused(run)
  if wrong and case.way in ("MtfModel", "tool"):
    with pytest.raises(checks.Error) as error:
      run.start()
    assert not run.seen
    for name in wrong - {"synthesizer_stack.attention"}:
      value = expected(run)[name]
      assert f"`{name}` is {value!r}, but {run.by_place['record'][name]!r}" in str(
          error.value)
    return
  with pytest.raises((Stop, SystemExit)):
    run.start()
  if wrong:
    assert not run.seen
    return
  assert len(run.seen) == (2 if case.mode == "eval" else 1)
  for seen in run.seen:
    for parameter in PARAMETERS:
      for scope in ("encoder", "decoder"):
        if parameter.name in expected(run):
          value, got = expected(run)[parameter.name], seen[parameter.name, scope]
          assert got in (value, [value]), (parameter.name, scope)


@pytest.mark.usefixtures("parsed_flags")
def test_the_strongest_place_that_sets_a_parameter_wins(paths, tmp_path):
  for name in os.listdir(paths / "model"):
    (tmp_path / "model").mkdir(exist_ok=True)
    shutil.copy(paths / "model" / name, tmp_path / "model" / name)
  for number in range(int(os.environ.get("CASES", 60))):
    gin.clear_config()
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.ExitStack() as stack:
      stack.enter_context(tf.Graph().as_default())
      try:
        check(number, tmp_path, paths, monkeypatch)
      except BaseException as error:
        raise AssertionError(f"case {number}: {drawn(number)}") from error


def settled(folder, *bindings, **kwargs):
  """Gin's bindings once a folder's record is read below what is bound."""
  gin_files.parse(["models/laptop.gin"], bindings)
  precedence.settle([precedence.Folder(str(folder))], **kwargs)


def test_one_line_says_what_a_folder_gives_and_where_both_differ(tmp_path, log):
  (tmp_path / precedence.RECORD).write_text(
      f"d_ff = 24\nd_kv = 32\n{PAIRS}train = 'old.tsv'\n{PAIRS}test = None\n"
      f"encoder/synthesizer_stack.attention = 'R'\n{PAIRS}validation = 'dev.tsv'\n")
  settled(tmp_path, f"{PAIRS}validation = 'new.tsv'", f"{PAIRS}test = 'test.tsv'")
  line, = [entry.getMessage() for entry in log.records if entry.module == "precedence"]
  assert line == (
      f"{tmp_path}/operative_config.gin gives d_ff, pairs.train, synthesizer_stack."
      "attention; `d_ff` is 24, and not 512 as in models/laptop.gin; `pairs.validation`"
      " is 'new.tsv', which is bound, and not 'dev.tsv'.")
  assert gin_files.bound(f"{PAIRS}test", None) == "test.tsv"


def test_a_repeated_value_is_no_conflict_and_lists_of_one_attention_are_that_attention(
    tmp_path):
  (tmp_path / precedence.RECORD).write_text(
      "num_heads = 2\nd_model = 16\nencoder/SelfAttention.num_heads = %num_heads\n"
      "encoder/SyntheticAttention.num_heads = None\n"
      "encoder/synthesizer_stack.attention = 'R'\n")
  settled(tmp_path, "d_model = 16", "SelfAttention.num_heads = 2",
          "SyntheticAttention.num_heads = 2", attention=["R", "R"])
  with pytest.raises(checks.Error, match="`attention` is 'D', but 'R' there; leave th"):
    settled(tmp_path, attention="D")
  with pytest.raises(checks.Error, match="`SelfAttention.num_heads` is 4, but 2 there"):
    settled(tmp_path, "SelfAttention.num_heads = 4")


def test_a_default_that_a_record_has_in_one_scope_holds_there(tmp_path):
  (tmp_path / precedence.RECORD).write_text(
      "SyntheticAttention.softmax = False\ndecoder/SyntheticAttention.softmax = True\n")
  settled(tmp_path)
  softmax = _in_scope("SyntheticAttention", "softmax")
  assert softmax("decoder") is True and softmax("encoder") is False


def test_what_is_bound_after_gin_was_cleared_is_a_persons_choice(tmp_path):
  (tmp_path / precedence.RECORD).write_text("dropout_rate = 0.3\n")
  settled(tmp_path)
  assert gin_files.bound("%dropout_rate", None) == 0.3  # Mesh's own default is 0.1.
  gin.clear_config()
  gin.parse_config("dropout_rate = 0.1")
  precedence.settle([precedence.Folder(str(tmp_path))])
  assert gin_files.bound("%dropout_rate", None) == 0.1


def test_a_record_without_a_task_has_the_vocabulary_of_the_file_beside_it(
    tmp_path, sentencepiece_model, monkeypatch):
  monkeypatch.delenv(vocabulary.VARIABLE, raising=False)
  (tmp_path / precedence.RECORD).write_text("num_heads = 2\n")
  entries = {"path": sentencepiece_model, "sha256": None, "size": 600}
  (tmp_path / "vocabulary.json").write_text(
      json.dumps({"inputs": entries, "targets": entries}))
  settled(tmp_path)
  for part in mesh_transformer.get_vocabulary():
    assert part.sentencepiece_model_file == sentencepiece_model
  monkeypatch.setenv(vocabulary.VARIABLE, "other.model")
  settled(tmp_path)
  assert vocabulary._chosen()[1] == "other.model"  # `vocabulary_record` compares it.


def test_later_bindings_win_over_all_scopes_of_a_record_given_as_a_file(tmp_path):
  record = tmp_path / precedence.RECORD
  record.write_text("encoder/DenseReluDense.dropout_rate = 0.3\n"
                    "encoder/SyntheticAttention.dropout_rate = 0.3\n")
  gin_files.parse(["models/laptop.gin", record], [
      "DenseReluDense.dropout_rate = 0.0", "SyntheticAttention.dropout_rate = 0.0"])
  for selector in ("DenseReluDense", "SyntheticAttention"):
    assert _in_scope(selector, "dropout_rate")("encoder") == 0.0


def test_the_command_refuses_other_sizes_than_those_of_its_folder(tmp_path):
  checkpoint_files.save(tmp_path, 4)
  (tmp_path / precedence.RECORD).write_text(
      "d_model = 16\nencoder/Unitransformer.d_model = %d_model\n")
  gin_files.parse(["models/laptop.gin"], ["d_model = 16"])
  precedence.check_folder(str(tmp_path))
  gin_files.parse(["models/laptop.gin"])
  with pytest.raises(checks.Error, match="`--model_dir` is .*: `d_model` is 128, but "
                     "16 there; leave this out, or name another folder.$"):
    precedence.check_folder(str(tmp_path))
