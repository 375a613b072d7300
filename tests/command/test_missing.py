"""Commands that lack something end with a sentence that names it."""

import contextlib
import tempfile

from absl.testing import flagsaver
import gin
from mesh_tensorflow.transformer import transformer_layers
import pytest
from support import checkpoint_files
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_names
from synthesizer_mtf import launcher
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.command import value_checks
import tensorflow.compat.v1 as tf

_FILES = ("dataset.gin", "models/laptop.gin", "cpu.gin")
_TOKENS = "utils.run.batch_size = ('tokens_per_replica', 2048)"
_TASK = "MIXTURE_NAME = 'synth_text_pairs'"

# From names of cases to gin files, bindings, and the beginning of the sentence.
LACKING = {
    "a mesh": (_FILES[:2], [_TASK], "No device is named; add --gin_file=cpu"),
    "data": (_FILES[1:], [], "There are no data to train on; add --gin_file="),
    "a task": (_FILES, [], "`MIXTURE_NAME` is missing; add --gin_param="),
    "a model": (_FILES[::2], [_TASK], "There is no model file, and Mesh TensorFlow's "
                "own sizes are 206 million parameters; add --gin_file="),
    "nothing but lengths": (
        _FILES, [_TASK, _TOKENS, "utils.run.sequence_length = None"],
        "`utils.run.batch_size` is ('tokens_per_replica', 2048), but"),
    "room for one sequence": (
        _FILES, [_TASK, "utils.run.batch_size = ('tokens_per_batch', 100)"],
        "`utils.run.batch_size` is ('tokens_per_batch', 100), less than one sequence")}


def ended_by(argv, **values):
  """The sentence that ends the command with these flags."""
  with flagsaver.flagsaver(**values), tf.Graph().as_default(), pytest.raises(
      SystemExit) as end:
    launcher.main(argv)
  return end.value.code.removeprefix("synthesizer_mesh_transformer: ")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, parsed_flags):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return str(tmp_path / "model")


@pytest.mark.parametrize("name", LACKING)
def test_what_a_command_lacks_is_named_with_the_remedy(name, folder):
  files, bindings, said = LACKING[name]
  line = ended_by([""], model_dir=folder, gin_file=list(files), gin_param=bindings)
  assert line.startswith(said) and "traceback" not in line


def test_a_word_that_is_no_flag_is_refused(folder):
  said = ended_by(["", "attention/v.gin"], model_dir=folder)
  assert said == ("'attention/v.gin' is not a flag; write --gin_file=attention/v.gin, "
                  "or leave it out.")
  assert "write --gin_param=a.b=3," in ended_by(["", "a.b=3"], model_dir=folder)


def test_a_command_without_a_folder_is_refused():
  assert ended_by([""], gin_param=[_TASK]).startswith("--model_dir is missing; name")


def test_a_tpu_of_the_name_false_is_refused_and_python_s_false_is_none(folder):
  assert ended_by([""], model_dir=folder, tpu="False").startswith(
      "--tpu is 'False' but must be the name or the address of a TPU; leave it out")
  assert synthesizer_mtf.MtfModel(folder, False)._tpu is None


def test_an_attention_that_is_a_class_shows_as_its_name(folder):
  model = synthesizer_mtf.MtfModel(
      folder, attention=transformer_layers.SelfAttention)
  assert "attention='SelfAttention'" in repr(model)


@pytest.mark.parametrize("more, parameters", [
    ({}, ""), ({"encoder/q_slot_v": [2, 3]}, ", parameters=6")])
def test_a_checkpoint_tells_its_parameters_if_it_has_slots(
    tmp_path, more, parameters, parsed_flags):
  checkpoint_files.save(tmp_path, 5, shapes={"encoder/q": [2, 3], **more})
  assert repr(synthesizer_mtf.MtfModel(str(tmp_path))).endswith(
      f", step=5{parameters})")


def test_a_path_may_begin_with_the_home(folder, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  for name in ("a.gin", "a.tsv", "lines", "a.model"):
    (tmp_path / name).write_text("num_layers = 7\n")
  model = synthesizer_mtf.MtfModel("~/model", warm_start="~/old")
  assert repr(model) == (f"MtfModel('{tmp_path}/model', attention=None, "
                         "sequence_length={'inputs': 512, 'targets': 512})")
  assert model._warm_start == f"{tmp_path}/old"
  for name in "input_file", "output_file", "scores_file":
    assert value_checks.read(name, "~/lines") == f"{tmp_path}/lines"
  gin_files.parse(["~/a.gin"], ["synthesizer_mtf.tasks.pairs.train = '~/a.tsv'"])
  assert gin.query_parameter("%num_layers") == 7
  assert own_text.PairFiles().files("train")[1] == [f"{tmp_path}/a.tsv"]
  with pytest.raises(checks.Error, match=f"`c` is '{tmp_path}/x' but there is no"):
    warm_start.find_checkpoint("~/x", "c")
  with pytest.raises(checks.Error, match=f"'{tmp_path}/a.model'"):
    vocabulary.load(*vocabulary._chosen("~/a.model"))
  assert [*map(launcher.as_read, ["--gin_file=~/a.gin", "--gin_param=a = '~'"])] == [
      f"--gin_file={tmp_path}/a.gin", "--gin_param=a = '~'"]


def test_without_tasks_the_name_of_the_task_may_be_empty(folder):
  given = [*_FILES], ["MIXTURE_NAME = ''", "mesh_transformer.get_vocabulary."
                      "mixture_or_task_name = 'synth_text_pairs'"]
  assert ended_by([""], model_dir=folder, gin_file=given[0], gin_param=given[1]
                  ).startswith("`MIXTURE_NAME` is '', which is not a task")
  gin.clear_config()
  assert ended_by([""], model_dir=folder, gin_file=given[0], gin_param=[
      *given[1], "utils.run.train_dataset_fn = @tsv_dataset_fn",
      "tsv_dataset_fn.filename = '/no.tsv'", "utils.run.sequence_length = 8"]
                  ).startswith("`tsv_dataset_fn.filename` is '/no.tsv', but there is")


@pytest.mark.parametrize("method", ["tokens_per_batch", "tokens_per_replica"])
def test_tokens_are_rounded_down_to_whole_sequences(method):
  gin_files.parse(bindings=[
      "utils.run.sequence_length = {'inputs': 40, 'targets': 7}",
      f"utils.run.batch_size = ('{method}', 32768)"])
  assert gin.query_parameter("utils.run.batch_size") == (method, 32760)


@pytest.mark.parametrize("line, told", [
    ("nobody = 3", ""), ("mine = 3\nother = %mine", ""), ("d_model = 16", None),
    ("size = 16\nd_model = %size", None), ("utils.run.train_steps = 2", None),
    ("MIXTURE_NAME = 'synth_text_pairs'", None),
    ("eval_checkpoint_step = 3", ""), ("init_checkpoint = ''", "")])
def test_a_macro_of_the_user_that_nothing_reads_is_reported(
    line, told, log, tmp_path):
  path = tmp_path / "mine.gin"
  path.write_text(f"# Mine.\n\n{line}\n")
  last = 2 + len(line.splitlines())
  for files, params, place in ([], [line], "given by `bindings`"), (
      [str(path)], [], f"bound in {path}, line {last}"):
    gin_files.parse([*_FILES, "attention/r.gin", *files], [_TASK, *params])
    said = [entry.getMessage() for entry in log.records
            if "nothing reads" in entry.getMessage()]
    log.clear()
    if told is None:
      assert not said
    else:
      assert [entry.partition(" is ")[2] for entry in said] == [
          f"{place}, but nothing reads it.{told}"]
  # An operative_config.gin holds what other modes and versions read.
  path = path.rename(tmp_path / "operative_config.gin")
  assert not list(gin_files.own(gin_names.given([str(path)], [])))


@pytest.mark.parametrize("line, meant", [
    ("init_checkpoint = 'DIR'", "utils.run.init_checkpoint"),
    ("init_checkpiont = 'DIR'", "utils.run.init_checkpoint"),
    ("run/train_steps = 5", "utils.run.train_steps"),
    ("train_model.init_checkpoint = 'DIR'", "utils.run.init_checkpoint"),
    ("learning_rate = 0.1", "utils.run.learning_rate_schedule"),
    ("attention = 'R'", "synthesizer_stack.attention"), ("d_modle = 16", "d_model"),
    ("MIXTURE_NAMES = 'synth_imdb_reviews'", "MIXTURE_NAME")])
def test_an_unread_macro_that_would_decide_a_training_is_an_error(
    line, meant, tmp_path):
  path = tmp_path / "mine.gin"
  path.write_text(line)
  for files, params, place in ([], [line], "given by `bindings`"), (
      [str(path)], [], f"bound in {path}, line 1"):
    with pytest.raises(checks.Error, match=(
        f"is {place}, but nothing reads it. Bind `{meant}`, or leave ")):
      gin_files.parse([*_FILES, *files], [_TASK, *params])
    assert not gin.config_str()  # A next cell of a notebook would train with it.


def test_an_unread_macro_that_would_decide_an_evaluation_is_an_error_if_it_is_typed(
    tmp_path):
  path = tmp_path / "all_modes.gin"
  path.write_text("eval_checkpoint_step = 3\ntrain_steps = 5")
  for mode, told in ("infer.gin", True), ("eval.gin", False):
    gin_files.parse([*_FILES, mode, str(path)], [_TASK])
    with (pytest.raises(checks.Error, match="Bind `utils.run.eval_checkpoint_step`")
          if told else contextlib.nullcontext()):
      gin_files.parse([*_FILES, mode], [_TASK, "eval_checkpoint_step = 3"])
