"""The start-up hook with which mesh_tensorflow and T5's commands start."""

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest
from support import environments
from support import processes
from support.paths import ROOT
from synthesizer_mtf.tasks import vocabulary

import synthesizer_mtf_start

SOURCES = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "synthesizer_mtf",
           "gin", "studies", "tasks", "tools", "synthesizer_mesh_transformer.py",
           "synthesizer_mtf_start.py", "synthesizer_mtf_start.pth"]


def test_the_hook_of_an_editable_installation_goes_with_it_and_with_the_checkout(
    tmp_path):
  source = tmp_path / "source"
  for name in SOURCES:
    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
    source.mkdir(exist_ok=True)
    copy(ROOT / name, source / name)
  wheel = environments.build("build_editable", source, tmp_path / "wheels")
  environment = environments.Environment(tmp_path / "venv")
  before = environment.files()
  pip = [sys.executable, "-m", "pip", "--python", environment.python]
  environments.output(*pip, "install", "--no-deps", wheel)
  added = environment.files() - before
  assert "synthesizer_mtf_start.pth" in added
  assert not [name for name in added if "studies/" in name]
  assert environment.has("studies")
  assert environment.hooks() == "1 False"
  moved = source.rename(tmp_path / "moved")
  assert environment.hooks() == "0 False"
  moved.rename(source)
  environments.output(*pip, "uninstall", "-y", "synthesizer-mtf")
  assert environment.files() == before
  assert environment.hooks() == "0 False"


def test_t5_alone_starts_and_stays_t5_until_the_package_is_imported():
  code = ("import sys, mesh_tensorflow, t5.models\n"
          "print(t5.models.MtfModel.__module__, 'synthesizer_mtf' in sys.modules)\n"
          "import synthesizer_mtf\n"
          "print(t5.models.MtfModel is synthesizer_mtf.MtfModel)")
  assert environments.output(sys.executable, "-c", code).endswith(
      "t5.models.mtf_model False\nTrue")


def test_t5s_own_command_takes_the_package_as_a_module(tmp_path):
  ran = processes.run_program([
      processes.COMMAND.with_name("t5_mesh_transformer"),
      "--module_import=synthesizer_mtf", f"--model_dir={tmp_path}",
      "--gin_file=dataset.gin", "--gin_file=cpu.gin", "--gin_file=models/bi_v1.gin",
      "--gin_param=MIXTURE_NAME = 'synth_text_pairs'",
      f"--gin_param={vocabulary.PARAMETER} = '{vocabulary.BYTES}'",
      "--gin_param=synthesizer_stack.attention = 'Q'"], tmp_path, subprocess.Popen)
  assert ran.returncode and "'Q' is not an attention" in ran.stderr, ran.stderr[-3000:]


@pytest.fixture
def mesh(tmp_path, monkeypatch):
  """A mesh_tensorflow that logs; a list of what happens, in this order."""
  (tmp_path / "mesh_tensorflow.py").write_text(
      "import synthesizer_mtf_start as s; s.happened.append('mesh')\n")
  happened = []
  monkeypatch.setattr(synthesizer_mtf_start, "happened", happened, raising=False)
  monkeypatch.syspath_prepend(tmp_path)
  for name in ("mesh_tensorflow", "synthesizer_mtf.compat"):
    monkeypatch.delitem(sys.modules, name, raising=False)
  compat = type(sys)("synthesizer_mtf_start.compat")
  compat.make_importable = lambda: happened.append("compat")
  monkeypatch.setitem(sys.modules, compat.__name__, compat)
  monkeypatch.setattr(synthesizer_mtf_start, "compat", compat, raising=False)
  monkeypatch.setattr(sys, "meta_path", [
      finder for finder in sys.meta_path
      if type(finder).__module__ != "synthesizer_mtf_start"])
  synthesizer_mtf_start.install()
  synthesizer_mtf_start.install()
  yield happened
  sys.modules.pop("mesh_tensorflow", None)


def test_tensorflow_is_prepared_when_mesh_is_imported_but_not_when_looked_for(mesh):
  assert importlib.util.find_spec("mesh_tensorflow") and not mesh
  importlib.import_module("mesh_tensorflow")
  assert mesh == ["compat", "mesh"]


def test_nothing_is_prepared_again_once_the_package_is_imported(mesh, monkeypatch):
  monkeypatch.setitem(sys.modules, "synthesizer_mtf.compat", None)
  importlib.import_module("mesh_tensorflow")
  assert mesh == ["mesh"]


def test_a_failure_leaves_the_import_as_it_was(mesh):
  def fail():
    raise OSError("no such library")
  synthesizer_mtf_start.compat.make_importable = fail
  importlib.import_module("mesh_tensorflow")
  assert mesh == ["mesh"]


def test_the_hook_runs_only_after_an_editable_installation_can_find_it():
  """Python reads .pth files in the order of their names."""
  name = pathlib.Path(synthesizer_mtf_start.__file__).with_suffix(".pth").name
  assert name > "__editable__"
  assert (ROOT / name).read_text().count("\n") == 1
