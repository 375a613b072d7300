"""The wheel and the source distribution, in an environment without the checkout.

The new environment borrows the other packages of this one, and no finder of ours.
"""

import json
import pathlib
import shutil
import sysconfig
import zipfile

import pytest
from support import environments
from support import launching
from support.clones import UV
from support.paths import ROOT

# Runs several programs in one process, which imports TensorFlow once. It prints their
# statuses and the files of our modules.
RUN = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
  program, *sys.argv = words
  run = runpy.run_module if program == "-m" else runpy.run_path
  try:
    run(sys.argv[0], run_name="__main__")
    status = 0
  except SystemExit as end:
    status = end.code or 0
  print("status", status)
print(*{module.__file__ for name, module in sys.modules.items()
        if name.startswith("synthesizer_") and module.__file__})
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
  """The wheels of the checkout and of its source distribution."""
  folder = tmp_path_factory.mktemp("source")
  shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(
      ".*", "__pycache__", "*.egg-info", "*_output", "build", "dist", "tests"))
  sdist = environments.build("build_sdist", folder / "clone", folder)
  shutil.unpack_archive(sdist, folder / "unpacked")
  unpacked, = (folder / "unpacked").iterdir()
  assert not (unpacked / "studies").exists()
  return [environments.build("build_wheel", source, folder / name) for source, name in (
      (folder / "clone", "of_clone"), (unpacked, "of_sdist"))]


def test_the_source_distribution_holds_all_that_the_wheel_needs(wheels):
  contents = []
  for path in wheels:
    with zipfile.ZipFile(path) as wheel:
      contents.append({info.filename: info.CRC for info in wheel.infolist()})
  assert contents[0] == contents[1]
  assert "synthesizer_mtf/gin/attention/r+v.gin" in contents[0]
  assert not [name for name in contents[0]
              if "studies/" in name or name.endswith(".jsonl")]


def test_the_wheel_runs_in_a_new_environment_and_goes_without_a_trace(
    wheels, tmp_path, sentencepiece_model):
  environment = environments.Environment(tmp_path / "venv")
  borrow_packages(environment.site)
  before = environment.files()
  environments.output(UV, "pip", "install", "--python", environment.python,
                      "--no-deps", wheels[1])
  assert "synthesizer_mtf_start.pth" in environment.files() - before
  assert environment.hooks() == "1 False" and not environment.has("studies")
  launch = launching.Launcher(tmp_path, sentencepiece_model)
  command = str(tmp_path / "venv" / "bin" / "synthesizer_mesh_transformer")
  training = launch(bindings=[launching.STEPS.format(2)],
                    run=lambda words, folder: words)
  printed = environments.output(environment.python, "-c", RUN, json.dumps([
      ["-", command, "--helpfull"],
      ["-m", "synthesizer_mtf.tools.benchmark", "--help"],
      ["-", command, *training]]), cwd=tmp_path)
  *_, paths = lines = printed.splitlines()
  assert [line for line in lines if line.startswith("status ")] == [
      "status 1", "status 0", "status 0"]
  assert "--gin_param" in printed and "usage: " in printed
  assert launching.steps(launch)[-1] == 2
  assert len(paths.split()) > 50
  assert all(pathlib.Path(path).is_relative_to(tmp_path) for path in paths.split())
  environments.output(UV, "pip", "uninstall", "--python", environment.python,
                      "synthesizer-mtf")
  assert environment.files() == before
  assert environment.hooks() == "0 False"


def borrow_packages(site):
  """Puts this environment's packages behind those of another one."""
  ours = pathlib.Path(sysconfig.get_path("purelib"))
  (site / "_borrowed.pth").write_text(f"{ours}\n")
  for path in ours.glob("*.pth"):
    if "synthesizer_mtf" not in path.name:
      shutil.copy(path, site)
