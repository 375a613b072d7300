"""Gin files of older versions of T5 are read; what means nothing today is named."""

import logging as python_logging
import shutil

import gin
import pytest
from support import golden
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_past
from t5.models import mesh_transformer
from t5.models import mtf_model


@pytest.fixture(name="old")
def fixture_old(tmp_path):
  path = tmp_path / "operative_config.gin"
  shutil.copy(golden.FOLDER / "operative_config_of_an_older_t5.gin", path)
  return path


def test_a_byte_order_mark_is_no_part_of_a_gin_file(tmp_path):
  (tmp_path / "own.gin").write_text("d_ff = 7\n", encoding="utf-8-sig")
  gin_files.parse(tmp_path / "own.gin")
  assert gin.query_parameter("%d_ff") == 7


@pytest.fixture(name="told")
def fixture_told(caplog, monkeypatch):
  """The warnings of the test."""
  monkeypatch.setattr(gin_past, "_warned", set())
  python_logging.getLogger("absl").propagate = True
  with caplog.at_level("WARNING", logger="absl"):
    yield lambda: [record.getMessage() for record in caplog.records
                   if "older T5" in record.getMessage()]


def by_parse(path):
  gin_files.parse([str(path), "cpu.gin"])


def by_mtf_model(path):
  gin_files.parse()
  mtf_model._parse_operative_config(str(path.parent))


def by_t5s_command(path):
  gin_files.parse()
  with gin.unlock_config():
    gin.parse_config_files_and_bindings(
        [str(path)], [], skip_unknown=mesh_transformer.DEPRECATED_GIN_REFERENCES,
        finalize_config=False)


def by_t5s_flag(path):
  gin_files.parse()
  with gin.unlock_config():
    gin.parse_config_files_and_bindings(
        [str(path)], [], skip_unknown=True, finalize_config=False)


@pytest.mark.parametrize("way", [by_parse, by_mtf_model, by_t5s_command, by_t5s_flag])
def test_a_published_configuration_is_read_and_old_lines_are_named_once(
    way, old, told):
  for _ in range(2):
    way(old)
  line, = told()
  assert str(old) in line
  for words in ("`decoder/make_layer_stack.use_universal_transformer = False` in line",
               "`import t5.data.sentencepiece_vocabulary` in line 9",
               "`run.vocabulary = @t5.data.sentencepiece_vocabulary",
               "`pack_dataset.use_custom_ops = True` in line"):
    assert words in line
  assert gin.query_parameter("decoder/LayerStack.norm_epsilon") == 1e-6
  assert gin.query_parameter("%d_model") == 16
  for parameter in ("pack_dataset.use_custom_ops", "run.vocabulary"):
    with pytest.raises(ValueError):
      gin.query_parameter(parameter)


def test_the_model_of_a_published_configuration_has_its_norms(old):
  by_parse(old)
  names = {v.name for v in models.training_step().graph.trainable_variables}
  assert {"encoder/final_layer_norm/scale",
          "decoder/block_001/layer_002/layer_norm/scale"} <= names


# Lines that resemble those of the past, and are read.
ALIKE = ["# make_layer_stack.use_universal_transformer = False",
         "pack_dataset.use_custom_ops = False",
         "mine = 'pack_dataset.use_custom_ops = True'",
         "use_universal_transformer = True",
         "import t5.data.sentencepiece_vocabularies"]


def test_a_line_that_is_like_an_old_one_is_left(told):
  for line in ALIKE:
    assert gin_past.current(line + "\n", "mine.gin") == line + "\n" and not told()


def test_an_old_line_that_would_mean_something_is_an_error(tmp_path):
  for line in ("use_universal_transformer = True", "use_universal_transformer = %mine",
               "use_universal_transformer = 1"):
    for scope in ("", "decoder/"):
      (tmp_path / "old.gin").write_text(f"\n{scope}make_layer_stack.{line}\n")
      with pytest.raises(ValueError, match="old.gin, line 2: `make_layer_stack.use_univ"
                         ".*leave the line out, and add --gin_file=stacks/universal"):
        gin_files.parse([str(tmp_path / "old.gin")])
  with pytest.raises(ValueError, match="`pack_dataset.use_custom_ops` is True, which "
                     "needs the package tensor2tensor"):
    gin_files.parse(bindings=["pack_dataset.use_custom_ops = True"])
