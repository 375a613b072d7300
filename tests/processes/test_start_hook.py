"""The start-up hook with which mesh_tensorflow and T5's commands start.

test_launcher.py runs T5's command.
"""

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest
from support.clones import UV
from support.paths import ROOT
from support.processes import LIMIT

import synthesizer_mtf_start

SOURCES = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "synthesizer_mtf",
           "gin", "studies", "tasks", "tools", "synthesizer_mesh_transformer.py",
           "synthesizer_mtf_start.py", "synthesizer_mtf_start.pth"]
BUILD = ("import sys; from setuptools import build_meta as b; "
         "print(getattr(b, sys.argv[1])(sys.argv[2]))")
HOOKS = ("import sys; print(sum(type(f).__module__ == 'synthesizer_mtf_start' "
         "for f in sys.meta_path), 'tensorflow' in sys.modules)")


def output(*words, **more):
  done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                        timeout=LIMIT, check=False, **more)
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout.strip().splitlines()[-1:] + [done.stderr]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A copy of what an installation reads."""
  folder = tmp_path_factory.mktemp("source")
  for name in SOURCES:
    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
    copy(ROOT / name, folder / name)
  return folder


def installed(environment):
  """The files in an environment's site-packages, without compiled modules."""
  return {str(path.relative_to(site))
          for site in environment.glob("lib/python*/site-packages")
          for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.parametrize("build, with_uv", [
    ("build_wheel", True), ("build_editable", False)])
def test_the_hook_is_installed_and_taken_away_with_the_package(
    build, with_uv, source, tmp_path):
  wheels, environment = tmp_path / "wheels", tmp_path / "venv"
  wheels.mkdir()
  wheel, _ = output(sys.executable, "-c", BUILD, build, wheels, cwd=source)
  output(UV, "venv", environment, "--python", sys.executable)
  python = environment / "bin" / "python"
  tool = ([UV, "pip"] if with_uv else
          [sys.executable, "-m", "pip", "--python", python])
  target = ["--python", python] if with_uv else []
  before = installed(environment)
  output(*tool, "install", *target, "--no-deps", wheels / wheel)
  added = installed(environment) - before
  assert "synthesizer_mtf_start.pth" in added
  assert not [name for name in added if "studies/" in name or name.endswith(".jsonl")]
  can_import = output(python, "-c", "import importlib.util as u; "
                      "print(u.find_spec('studies') is not None)", cwd=tmp_path)[0]
  assert can_import == str(build == "build_editable")
  assert output(python, "-c", HOOKS) == ["1 False", ""]
  if build == "build_editable":  # The hook is silent where the checkout is gone.
    moved = source.rename(source.with_name("moved"))
    assert output(python, "-c", HOOKS) == ["0 False", ""]
    moved.rename(source)
  output(*tool, "uninstall", *target, *([] if with_uv else ["-y"]), "synthesizer-mtf")
  assert installed(environment) == before
  assert output(python, "-c", HOOKS) == ["0 False", ""]


def test_t5_alone_starts_and_stays_t5():
  code = ("import sys, mesh_tensorflow, t5.models\n"
          "print(t5.models.MtfModel.__module__, 'synthesizer_mtf' in sys.modules)")
  assert output(sys.executable, "-c", code)[0] == "t5.models.mtf_model False"


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
