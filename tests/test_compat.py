"""Tests of synthesizer_mtf.compat."""

import contextlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import types

import gin
import matplotlib
from mesh_tensorflow.transformer import utils
import pytest
from synthesizer_mtf import compat
from synthesizer_mtf import estimator_shim
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import backend
import tensorflow.compat.v1 as tf


def test_what_is_there_already_is_kept(monkeypatch):
  from tensorflow.python.framework import ops
  def mine(*args):
    return None
  monkeypatch.setattr(ops, "register_tensor_conversion_function", mine)
  before = utils.write_lines_to_file
  compat.apply()  # Once more.
  assert ops.register_tensor_conversion_function is mine
  assert utils.write_lines_to_file is before


def test_the_estimator_is_where_mesh_and_t5_look_for_it():
  from tensorflow.python.tpu import tpu_config
  from tensorflow.python.tpu import tpu_estimator
  assert issubclass(tpu_estimator.TPUEstimator, tf.estimator.Estimator)
  assert tf.estimator.tpu.TPUConfig is tpu_config.TPUConfig
  assert tf.estimator.ModeKeys.TRAIN == "train"


def test_an_estimator_of_tensorflow_is_kept(monkeypatch):
  monkeypatch.setattr(estimator_shim, "_has_estimator", lambda: True)
  monkeypatch.setattr(patches, "append", pytest.fail)
  monkeypatch.setattr(patches, "fill", pytest.fail)
  estimator_shim.apply()


def test_one_finder_finds_deleted_modules_and_no_others():
  from tensorflow.python.util import tf_export
  finders = [f for f in sys.meta_path if type(f).__name__ == "_Finder"
             and type(f).__module__.endswith("estimator_shim")]
  assert len(finders) == (not hasattr(tf_export, "ESTIMATOR_API_NAME"))
  for name in [*estimator_shim._MOVED, *estimator_shim._STAND_INS]:
    assert importlib.import_module(name) is sys.modules[name]
  finder = estimator_shim._Finder()
  assert finder.find_spec("tensorflow.python.tpu.tpu_embedding")
  for name in ("tensorflow.python.tpu", "tensorflow.python.tpu.tpu",
               "tpu_embedding", "tensorflow.python.tpu.tpu_embedding.other"):
    assert finder.find_spec(name) is None


def test_leaving_a_tpu_asks_nothing_of_a_deleted_module():
  support = estimator_shim._session_support()
  hook = support["GracefulShutdownHook"](
      checkpoint_prefix="/tmp/x", on_shutdown_hooks=[support["ResetComputation"]()])
  assert isinstance(hook, tf.train.SessionRunHook)


@pytest.mark.slow
def test_importing_the_package_leaves_streams_and_garbage_collection_alone():
  ran = subprocess.run(
      [sys.executable, "-c", "import gc, synthesizer_mtf\n"
       "print(gc.isenabled(), gc.get_freeze_count())"],
      capture_output=True, text=True, check=False)
  assert (ran.returncode, ran.stdout) == (0, "True 0\n")
  notices = r"[IW]0000 |WARNING: All log messages before absl|.*Unable to register cu"
  assert not [line for line in ran.stderr.splitlines()
              if not re.match(notices, line)]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None,
                    reason="torch is installed, so t5's own model is used")
def test_hf_model_without_torch_raises_only_when_used():
  models = importlib.import_module("t5.models")
  assert "torch" not in sys.modules
  with pytest.raises(ImportError, match="needs torch.*install torch"):
    models.HfPyTorchModel("small", "/tmp", None)


def test_predictions_are_written_as_text(tmp_path):
  path = tmp_path / "predictions"
  utils.write_lines_to_file(["München".encode(), "Köln"], str(path))
  assert path.read_text(encoding="utf-8") == "München\nKöln\n"


def test_metadata_server_is_asked_on_google_machines_or_if_the_user_says_so(
    tmp_path, monkeypatch):
  path = tmp_path / "product_name"
  for product, given, expected in [
      (None, {}, "true"), (None, {"NO_GCE_CHECK": "false"}, "false"),
      ("Google Compute Engine\n", {}, None), ("ThinkPad\n", {}, "true")]:
    if product:
      path.write_text(product)
    monkeypatch.setattr(compat.os, "environ", given)
    compat._skip_metadata_server(str(path))
    assert given.get("NO_GCE_CHECK") == expected


def test_onednn_computes_on_x86_unless_the_user_says_otherwise(monkeypatch):
  name = "TF_ENABLE_ONEDNN_OPTS"
  for machine, given, expected in [
      ("x86_64", {}, "1"), ("x86_64", {name: "0"}, "0"), ("aarch64", {}, None)]:
    monkeypatch.setattr(compat.platform, "machine", lambda machine=machine: machine)
    monkeypatch.setattr(compat.os, "environ", given)
    compat._compute_by_onednn()
    assert given.get(name) == expected


@pytest.mark.parametrize("name, kept", [
    ("wrong", False), ("svg", True), ("module://of.another", True),
    # matplotlib knows Jupyter's by the package, which is not in each environment.
    ("module://matplotlib_inline.backend_inline",
     importlib.util.find_spec("matplotlib_inline") is not None)])
def test_a_backend_of_pictures_that_nobody_knows_is_ignored(name, kept, monkeypatch):
  settings = matplotlib.RcParams()
  monkeypatch.setenv("MPLBACKEND", name)
  monkeypatch.setattr(compat, "sys", types.SimpleNamespace(modules={}))
  monkeypatch.setattr(compat, "importlib", types.SimpleNamespace(
      util=importlib.util,
      import_module=lambda name: types.SimpleNamespace(rcParams=settings)))
  with (contextlib.nullcontext() if kept else
        pytest.warns(UserWarning, match=f"MPLBACKEND is '{name}', which matplotlib")):
    compat._forget_unknown_backend()
  assert os.environ.get("MPLBACKEND") == (name if kept else None)


def test_tools_draw_without_a_display_and_leave_a_notebooks_backend(monkeypatch):
  chosen = []
  monkeypatch.setattr(backend.matplotlib, "use", chosen.append)
  monkeypatch.setitem(sys.modules, "IPython", types)
  backend.choose()
  assert not chosen
  monkeypatch.delitem(sys.modules, "IPython")
  backend.choose()
  assert chosen == ["Agg"]


def test_a_tool_leaves_gin_the_log_and_tensorflow_2_as_they_were():
  def state():
    return (gin.query_parameter("%d_model"), gin.config_is_locked(),
            gin_files.parsed().given, tf.executing_eagerly(),
            tf.logging.get_verbosity(), matplotlib.rcParams["savefig.dpi"])

  gin_files.parse([], ["d_model = 8"])
  before = state()
  with arguments.command(arguments.parser("tool", ""), [], graphs=True):
    gin_files.parse([], ["d_model = 16"])
    assert state()[-1] == 160
  assert state() == before
  gin.clear_config()
