"""Commands that lack something end with a sentence that names it."""

import tempfile

from absl.testing import flagsaver
import gin
import pytest
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_names
from synthesizer_mtf import launcher
from synthesizer_mtf.trainer import missing
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


@pytest.mark.parametrize("method", ["tokens_per_batch", "tokens_per_replica"])
def test_tokens_are_rounded_down_to_whole_sequences(method):
  gin_files.parse(bindings=[
      "utils.run.sequence_length = {'inputs': 40, 'targets': 7}",
      f"utils.run.batch_size = ('{method}', 32768)"])
  assert gin.query_parameter("utils.run.batch_size") == (method, 32760)


@pytest.mark.parametrize("line, told", [
    ("attention = 'R'", " Did you mean synthesizer_stack.attention?"),
    ("d_modle = 16", " Did you mean d_model?"), ("nobody = 3", ""),
    ("d_model = 16", None), ("MIXTURE_NAME = 'other'", None),
    ("size = 16\nd_model = %size", None), ("utils.run.train_steps = 2", None)])
def test_a_macro_of_the_user_that_nothing_reads_is_reported(
    line, told, caplog, tmp_path):
  path = tmp_path / "mine.gin"
  path.write_text(f"# Mine.\n\n{line}\n")
  for files, params, place in ([], [line], "given by --gin_param"), (
      [str(path)], [], f"bound in {path}, line 3"):
    given = [*_FILES, "attention/r.gin", *files], [_TASK, *params]
    gin.clear_config()
    gin_files.parse(*given)
    missing.warn_of_unused(gin_names.given(*given))
    said = [each.getMessage() for each in caplog.records
            if "nothing reads" in each.getMessage()]
    caplog.clear()
    if told is None:
      assert not said
    else:
      assert [each.partition(" is ")[2] for each in said] == [
          f"{place}, but nothing reads it.{told}"]
  # An operative_config.gin holds what other modes and versions read.
  path = path.rename(tmp_path / "operative_config.gin")
  assert not list(gin_files.own(gin_names.given([str(path)], [])))
