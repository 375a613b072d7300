"""Mistakes in gin files and bindings are named with their line, before gin parses."""

import pathlib
import re

import gin
import pytest
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files

MODEL = "models/laptop.gin"


@pytest.fixture(autouse=True)
def search_path():
  gin_files.add_search_path()


@pytest.fixture(name="written")
def fixture_written(tmp_path):
  def write(text, name="a.gin"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)
  return write


# The text of a file, the line of the mistake, and a part of the message.
MISTAKES = [
    ("d_ff = 3\nutils.run.train_step = 3\n", 2, "Did you mean train_steps"),
    ("RandomLogit.max_length = 3\n", 1, "Did you mean RandomLogits"),
    ("\n\nutils.run.optimizer = @Adafactor\n", 3, "Did you mean AdafactorOptimizer"),
    ("x = [\n  @SelfAtention]\n", 2, "Did you mean SelfAttention"),
    ("include 'infer.gin'\ninfer_model.decode_fn = @decode_from_files\n", 2,
     "decode each file by a command of its own, with infer.gin"),
    ("RandomLogits:\n  stddev = 0.1\n  max_len = 4\n", 3, "Did you mean max_length"),
    ("d_ff = 3\nd_kv 4\n", 2, "write each binding as PARAMETER = VALUE"),
    ("d_ff = 3\nx = r\n", 2, "write 'r' or a number"),
    ("x = {'a': 3\n", "", "close each quote and bracket"),
    ("d_ff = 3\nDenseReluDense.hidden_size = [3, %MY_SIZE]\n", 2,
     "has %MY_SIZE, but nothing binds `MY_SIZE`; bind it"),
]


def test_a_mistake_is_named_with_its_file_and_line(written):
  for text, line, said in MISTAKES:
    path = written(text)
    with pytest.raises(checks.Error) as error:
      gin_files.check([written(f"include '{path}'\n", "b.gin")], [])
    message = str(error.value)
    assert said in message and f"{path}, line {line}" in message


def test_files_that_include_each_other_are_named(written, tmp_path):
  a, b = (str(tmp_path / name) for name in ("a.gin", "b.gin"))
  written(f"include '{b}'\n")
  written(f"include '{a}'\n", "b.gin")
  with pytest.raises(checks.Error, match=f"{b} includes {a} includes {b}, and so on; "):
    gin_files.check([written(f"include '{b}'\n", "c.gin")], [])


def test_a_file_may_be_included_twice(written):
  a = written("d_ff = 3\n")
  b = written(f"include '{a}'\n", "b.gin")
  gin_files.check([written(f"include '{b}'\ninclude '{a}'\n", "c.gin"), a], [])


def test_a_value_that_is_missing_is_named():
  for binding, said in [
      ("x = %d_modl", "nothing binds `d_modl`; bind it, too. Did you mean d_model?"),
      ("warm_start.checkpoint = %gin.REQUIRED",
       "`warm_start.checkpoint` is %gin.REQUIRED; bind it by --gin_param"),
      ("X = %gin.REQUIRED", "`X` is %gin.REQUIRED; bind it by --gin_param")]:
    with pytest.raises(checks.Error) as error:
      gin_files.check([MODEL], [binding])
    assert said in str(error.value)


def test_the_last_value_of_a_binding_counts(written):
  path = written("a/RandomLogits.stddev = %gin.REQUIRED\nx = 1\n")
  values = gin_files.check(
      [path], ["a/RandomLogits.stddev = %x", "x = 2", "y = %gin.REQUIRED", "y = 3",
               "b/z = 1", "w = %b/z", "v = %nowhere", "v = 4", "u/gin.macro.value = 1",
               "t = %u"])
  assert values["", "x", ""] == 2 and values["", "y", ""] == 3
  logits, = [key for key in values if key[0] == "a"]
  assert logits[1].endswith("RandomLogits") and str(values[logits]) == "%x"


@pytest.mark.parametrize("skip", [True, ["gone", "also_gone"]])
def test_names_that_may_be_unknown_are_skipped(skip):
  bindings = ["gone.x = 3", "utils.run.optimizer = @also_gone", "import gone"]
  values = gin_files.check([], bindings, skip)
  assert not [key for key in values if key[1] == "gone"]
  with pytest.raises(checks.Error, match="gone"):
    gin_files.check([], bindings)


def test_a_file_with_registration_of_its_own_is_left_to_gin(written):
  gin_files.check([written(
      "from __gin__ import dynamic_registration\nimport json\njson.loads.s = '3'\n")],
                  [])


def test_every_gin_file_of_this_package_passes_and_nothing_is_bound():
  paths = list(pathlib.Path(gin_files.folder()).rglob("*.gin"))
  assert len(paths) > 80
  macros = {name for path in paths for name in re.findall(
      r"%([A-Za-z]\w+)\b(?!\.)", path.read_text())}
  for path in paths:
    gin_files.check([str(path)], [
        "warm_start.checkpoint = 'model.ckpt-1'", "MIXTURE_NAME = 'x'",
        *(f"{name} = 1" for name in macros)])
  assert not gin.config_str()
