"""Tests of whose mistake an exception is, and of what is kept of it."""

import ast
import importlib
import pathlib
import re
import tempfile
import types

from absl.testing import flagsaver
import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
import seqio
import synthesizer_mtf
from synthesizer_mtf import launcher
from synthesizer_mtf.command import messages
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  """Where the files with tracebacks go."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return tmp_path


def planted(function, module="synthesizer_mtf.attention"):
  """A function of a test as if it were in a module of the package."""
  return types.FunctionType(
      function.__code__, {**function.__globals__, "__name__": module},
      function.__name__, function.__defaults__, function.__closure__)


def numpy_shapes():
  np.zeros([2, 3]) + np.zeros([4])


def not_a_number():
  return int("twelve")


def tensorflow_shapes():
  with tf.Graph().as_default():
    return tf.reshape(tf.zeros([2, 3]), [4, 5])


def mesh_shapes():
  mesh = mtf.Mesh(mtf.Graph(), "mesh")
  x = mtf.zeros(mesh, mtf.Shape([mtf.Dimension("length", 6)]))
  return mtf.reshape(x, [mtf.Dimension("length", 7)])


def mesh_dimension():
  return mtf.Shape([]).get_dim_by_name("heads")


def passed_on():
  try:
    not_a_number()
  except ValueError:
    raise


def wrong_type():
  return "1" + 1


def not_written():
  raise NotImplementedError("of a base class")


def taken():
  raise PermissionError(13, "Permission denied", "spm.model")


BUGS = [numpy_shapes, not_a_number, tensorflow_shapes, mesh_shapes,
        mesh_dimension, passed_on]


def raised_by(function):
  """The exception of a function."""
  with pytest.raises(Exception) as error:
    function()
  return error.value


@pytest.fixture
def run(parsed_flags, tmp_path, monkeypatch):
  """Runs the launcher's main with a function in the place of T5's."""
  del parsed_flags

  def run_main(function):
    monkeypatch.setattr(mesh_transformer_main, "main", lambda argv: function())
    with flagsaver.flagsaver(model_dir=str(tmp_path / "model")):
      launcher.main([])

  return run_main


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_ours_keeps_its_traceback_in_a_file(bug, run, capsys):
  with pytest.raises(SystemExit) as end:
    run(planted(bug))
  assert end.value.code == 1
  written = capsys.readouterr().err
  assert "Traceback" not in written
  sentence = written.splitlines()[-1]
  path = re.fullmatch(
      r"synthesizer_mesh_transformer: .* \(this may be a mistake of the program: "
      r"its traceback is in (.*)\)", sentence)[1]
  kept = pathlib.Path(path).read_text()
  assert kept.startswith("Traceback (most recent call last)")
  assert f"in {bug.__name__}" in kept
  assert str(raised_by(planted(bug))) in kept


@pytest.mark.parametrize("bug", [wrong_type, not_written])
def test_a_bug_of_a_type_that_no_mistake_has_is_not_caught(bug, run):
  with pytest.raises((TypeError, NotImplementedError)):
    run(planted(bug))


def test_a_bug_within_a_gin_configurable_is_still_one(monkeypatch):
  configurable = gin.external_configurable(
      planted(not_a_number), f"bug_{id(monkeypatch)}", module="tests")
  error = raised_by(configurable)
  assert "In call to configurable" in str(error)
  assert not messages.is_mistake(error)


def test_a_traceback_is_printed_where_no_file_can_be_written(
    temporary, monkeypatch, capsys):
  monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
  messages.report(raised_by(planted(numpy_shapes)))
  written = capsys.readouterr().err
  assert "in numpy_shapes" in written
  assert written.splitlines()[-1].endswith("its traceback is above)")


def our_sentence():
  synthesizer_mtf.attention_layer("R+X", num_heads=2, key_value_size=4)


def our_sentence_about_another():
  try:
    not_a_number()
  except ValueError as error:
    raise ValueError("`a.b` is 'twelve'; give a number.") from error


@gin.configurable(module="tests")
def within_gin():
  our_sentence()


def slip():
  gin.parse_config("a.b = = 3")


def unknown_configurable():
  gin.parse_config("Nothing.a = 3")


def missing_file_of_gin():
  gin.parse_config_file("no/such.gin")


def missing_binding():
  gin.external_configurable(
      lambda a=gin.REQUIRED: a, "needs_a", module="tests")()


def unknown_task():
  seqio.get_mixture_or_task("synth_nothing")


def layout():
  mtf.tensor_dim_to_mesh_dim_size(
      "a:x;a:y", "x:2;y:2", mtf.Dimension("a", 4))


def memory_heads():
  transformer_layers.SelfAttention(num_heads=3, num_memory_heads=2).make_params(
      types.SimpleNamespace(model=types.SimpleNamespace(
          model_dim=mtf.Dimension("d_model", 4), ensemble_dim=None),
                            mesh=None))


@pytest.mark.parametrize("mistake", [
    our_sentence, planted(our_sentence_about_another), within_gin, slip,
    unknown_configurable, missing_file_of_gin, missing_binding, unknown_task,
    layout, memory_heads], ids=lambda f: f.__name__)
def test_a_mistake_of_the_user_is_one_sentence(mistake, temporary, capsys):
  error = raised_by(mistake)
  assert messages.is_mistake(error)
  messages.report(error)
  assert "mistake of the program" not in capsys.readouterr().err
  assert not list(temporary.iterdir())


def test_a_module_that_a_module_of_the_user_lacks_is_traced(
    tmp_path, monkeypatch, capsys):
  (tmp_path / "tasks_of_a_user.py").write_text("import no_such_module\n")
  monkeypatch.syspath_prepend(tmp_path)
  def theirs(name):
    return planted(lambda: importlib.import_module(name), "t5.models.main")
  messages.report(raised_by(theirs("tasks_of_a_user")))
  path, = tmp_path.glob("synthesizer_mesh_transformer_*")
  assert "tasks_of_a_user.py\", line 1" in path.read_text()
  assert f"its traceback is in {path})" in capsys.readouterr().err
  assert messages.is_mistake(raised_by(theirs("no_such_module")))


@pytest.mark.parametrize("name", ["no.txt", "no" * 40])
def test_a_missing_file_is_the_users_if_a_binding_names_it(name, tmp_path):
  def missing():
    (tmp_path / name).read_text()
  assert not messages.is_mistake(raised_by(planted(missing)))
  gin.parse_config(f"FILE = '{tmp_path}/{name}'")
  assert messages.is_mistake(raised_by(planted(missing)))


@pytest.mark.parametrize("mistake, others", [
    (planted(our_sentence_about_another), ()), (taken, (OSError,))])
def test_a_tool_ends_with_the_sentence_of_a_mistake(mistake, others):
  with pytest.raises(SystemExit) as end, messages.ending("tool", *others):
    mistake()
  assert end.value.code == f"tool: {raised_by(mistake)}"


@pytest.mark.parametrize("bug", [*map(planted, BUGS), taken])
def test_a_tool_does_not_hide_a_bug(bug):
  with pytest.raises(type(raised_by(bug))), messages.ending("tool"):
    bug()


@pytest.mark.parametrize("package", messages.KNOWN)
def test_the_known_messages_are_still_those_of_their_package(package):
  folder = pathlib.Path(importlib.import_module(package).__file__).parent
  texts = {
      node.value for path in folder.rglob("*.py")
      if not path.name.endswith("_test.py")
      for node in ast.walk(ast.parse(path.read_text()))
      if isinstance(node, ast.Constant) and isinstance(node.value, str)}
  gone = [part for part in messages.KNOWN[package]
          if not any(part in text for text in texts)]
  assert not gone
