"""Tests of the last line of a command that an exception ends."""

import contextlib
import pathlib
import re
import resource
import tempfile
import threading

from absl import logging
import gin
import pytest
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  """The folder for the files with tracebacks."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return tmp_path


def ended_by(function):
  """The last line of a tool that runs a function."""
  with pytest.raises(SystemExit) as end, messages.ending("tool"):
    function()
  return end.value.code


def caused_by_another():
  try:
    int("twelve")
  except ValueError as error:
    raise checks.Error("`a.b` is 'twelve'; give a number.") from error


@gin.configurable(module="tests")
def within_gin():
  caused_by_another()


@pytest.mark.parametrize("check", [caused_by_another, within_gin])
def test_an_error_of_our_own_checks_is_one_line(check, temporary, capsys):
  assert ended_by(check) == "tool: `a.b` is 'twelve'; give a number."
  assert not list(temporary.iterdir())
  above = capsys.readouterr().err
  assert above.startswith("  In call to configurable 'within_gin'") == (
      check is within_gin)


def test_in_python_an_error_of_our_own_checks_is_without_gins_calls():
  with pytest.raises(checks.Error) as error, messages.without_calls():
    within_gin()
  assert str(error.value.__cause__).partition("\n")[0] == str(error.value)
  with pytest.raises(checks.LengthError), messages.without_calls():
    checks.check_length("R.max_length", 2, 3)


def binding():
  gin.external_configurable(
      lambda a=gin.REQUIRED: a, "needs_a", module="tests")()


def tensorflow_shapes():
  with tf.Graph().as_default():
    return tf.reshape(tf.zeros([2, 3]), [4, 5])


def raised(error):
  """A function that raises an error."""
  def fail():
    raise error
  return fail


def missing_file(nodes=1):
  """Reads a file in a graph; TensorFlow lists the failures of several operations."""
  with tf.Graph().as_default(), tf.Session() as session:
    session.run([tf.data.make_one_shot_iterator(
        tf.data.TextLineDataset("/no/such.tsv")).get_next() for _ in range(nodes)])


def missing_files():
  missing_file(nodes=3)


def wrong_columns():
  with tf.Graph().as_default(), tf.Session() as session:
    data = tf.data.Dataset.from_tensors("three\tcolumns\there").map(
        lambda line: tf.io.decode_csv(line, ["", ""], field_delim="\t"))
    session.run(tf.data.make_one_shot_iterator(data).get_next())


def user_code():
  def fail(x):
    raise RuntimeError("no such column") if x is not None else x
  tf.data.Dataset.range(2).map(fail)


TAKEN = raised(PermissionError(13, "Permission denied", "spm.model"))

# Exceptions that no check of ours raises; test_mistakes.py has more.
OTHERS = [
    (binding, r"Required bindings for `needs_a` not provided in config: \['a'\]"),
    (tensorflow_shapes, r"Cannot reshape a tensor with 6 elements .*"),
    (raised(tf.errors.DataLossError(
        None, None, "truncated record at 1044' failed with Read less bytes")),
     r"truncated record .*; a file of the data set or of a cache is .*"),
    (missing_file, "/no/such.tsv; No such file or directory"),
    (missing_files, "/no/such.tsv; No such file or directory"),
    # TensorFlow 2.21 also names the data set.
    (wrong_columns, r"(Error in .* MapDataset.*: )?Expect 2 ?fields but have 3 in .*"),
    (user_code, "RuntimeError: no such column"),
    (TAKEN, r"\[Errno 13\] Permission denied: 'spm.model'"),
    (raised(NotImplementedError()), "NotImplementedError")]


@pytest.mark.parametrize("function, said", OTHERS)
def test_any_other_exception_names_a_file_with_its_traceback(function, said, capsys):
  line = ended_by(function)
  told = re.fullmatch(rf"tool: {said} \(its traceback is in (.*)\)", line)
  assert told, line
  kept = pathlib.Path(told[told.re.groups]).read_text()
  assert kept.startswith("Traceback (most recent call last)")
  assert f"in {function.__name__}" in kept
  assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("error, said", [
    (ValueError("`a.b` is 3;\n\t raise it."), "`a.b` is 3; raise it."),
    (ValueError("Not so.\n\nDefined at:\n  x.py"), "Not so."),
    (checks.Error("Not so.\n\nBut so."), "Not so. But so."),
    (ValueError("Not so.\n  In call to configurable 'run' (<x>)"), "Not so."),
    (ValueError("No bindings for 'x/gin.macro' in config string: \na = 3\n."),
     "No bindings for 'x/gin.macro'"),
    (KeyError("heads"), "KeyError: 'heads'"),
    (FileNotFoundError("/no/such.txt; No such file"),
     "/no/such.txt; No such file (FILE = '/no/such.txt')")])
def test_the_message_is_one_line_with_the_bindings_that_it_cites(error, said):
  gin.parse_config("FILE = '/no/such.txt'")
  line = messages.last_line("tool", error)
  assert line.partition(" (its traceback")[0] == f"tool: {said}"


@pytest.mark.parametrize("function", [caused_by_another, TAKEN])
def test_the_flag_verbosity_prints_the_traceback(function, capsys):
  logging.set_verbosity(1)
  ended_by(function)
  assert f"in {function.__name__}" in capsys.readouterr().err


def test_a_traceback_is_printed_where_no_file_can_be_written(
    temporary, monkeypatch, capsys):
  monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
  assert ended_by(TAKEN).endswith(" (its traceback is above)")
  assert "in fail" in capsys.readouterr().err


@contextlib.contextmanager
def full_disk(size=10):
  """No file gets longer than `size` bytes."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def write_events(folder):
  with tf.Graph().as_default():
    writer = tf.summary.FileWriter(str(folder))
    writer.add_summary(tf.Summary())
    writer.flush()
    path, = folder.iterdir()
    with full_disk(path.stat().st_size):
      writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag=99 * "a")]))
      writer.flush()


def write_text(folder):
  with tf.io.gfile.GFile(str(folder / "text"), "w") as f:
    f.write(99 * "a")


def write_variables(folder):
  with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.raw_ops.SaveV2(
        prefix=str(folder / "variables"), tensor_names=["a"], shape_and_slices=[""],
        tensors=[tf.ones([99])]))


def write_in_python(folder):
  (folder / "python").write_text(99 * "a")


@pytest.mark.parametrize("write", [
    write_events, write_text, write_variables, write_in_python])
def test_a_full_disk_is_one_sentence_whatever_was_to_be_written(
    write, tmp_path, capfd):
  folder, hook = tmp_path / "outputs", threading.excepthook
  folder.mkdir()
  with contextlib.nullcontext() if write is write_events else full_disk():
    line = ended_by(lambda: write(folder))
  name = "a file" if write is write_in_python else f"{folder}/.*"
  assert re.fullmatch(f"tool: {name} could not be written: File too large; make room "
                      "there, or name another place.", line)
  assert "Traceback" not in capfd.readouterr().err
  assert threading.excepthook is hook


@pytest.mark.parametrize("said, why", [
    ("libcurl code 6 meaning 'Could not resolve hostname', error details: Could not "
     "resolve host: a.b\n\t when reading metadata of gs://c/d.gin",
     "Could not resolve host: a.b"),
    ("HTTP response code 403 with body 'No\naccess'\n\t when reading gs://c/d.gin",
     "HTTP response code 403 with body 'No")])
def test_a_cloud_that_does_not_answer_is_one_sentence(said, why):
  def read():
    raise tf.errors.FailedPreconditionError(
        None, None, f"Error executing an HTTP request: {said}")

  assert ended_by(read) == (
      f"tool: gs://c/d.gin cannot be reached ({why}); check the network and the "
      "permissions, or copy it to this machine and name the copy.")


def test_other_errors_of_files_keep_their_own_words():
  for error in (FileNotFoundError(2, "No such file or directory", "a"),
                tf.errors.NotFoundError(None, None, "a; No such file or directory"),
                RuntimeError("the disk")):
    with pytest.raises(type(error)) as raised_again, messages.explained_files():
      raise error
    assert raised_again.value is error
