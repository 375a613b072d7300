"""Tests of what is installed: the command, its flags and its files."""

import fnmatch
from importlib import metadata
import os
import re
import runpy
import subprocess
import sys

from absl import flags
import gin
import pytest
import seqio
from support import shell
from support import stored_help as stored_texts
from support.paths import ROOT
import synthesizer_mtf
from synthesizer_mtf import launcher
from synthesizer_mtf import stored_help
from synthesizer_mtf.attention import functions
from synthesizer_mtf.tools.base import recipes
from t5.models import mesh_transformer_main

import synthesizer_mesh_transformer

TRAINER_HELP = synthesizer_mesh_transformer.HELP.read_text(encoding="utf-8")

# Another test of this process may have imported studies/.
OF_STUDIES = ("synth_ability_", "synth_lra_")


def _user_flags(module):
  modules = flags.FLAGS.flags_by_module_dict()
  return {flag.name for flag in modules.get(module, [])}


def test_launcher_takes_exactly_the_flags_of_t5():
  assert not _user_flags(launcher.__name__)
  assert "model_dir" in _user_flags(mesh_transformer_main.__name__)


def test_gin_folder_is_never_a_package():
  assert not list((ROOT / "gin").rglob("__init__.py"))


def test_help_comes_without_tensorflow_and_the_package_as_a_module_has_the_same(
    monkeypatch, capsys):
  code = ("import sys, synthesizer_mesh_transformer as command; "
          "sys.argv = ['', '--help']; command.main(); "
          "assert 'tensorflow' not in sys.modules and 'numpy' not in sys.modules")
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True,
                        capture_output=True, check=False)
  assert (done.returncode, done.stdout) == (0, TRAINER_HELP)
  monkeypatch.setattr(sys, "argv", ["", "--help"])
  runpy.run_module("synthesizer_mtf", run_name="__main__")
  assert capsys.readouterr().out == TRAINER_HELP


def test_help_of_a_command_comes_from_its_file_without_tensorflow(tmp_path):
  (tmp_path / "tensorflow.py").write_text("raise SystemError('it was imported')")
  environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
  for words, name in (
      (["synthesizer_mtf.tools.plan_pod", "--table4", "-h"], "plan_pod"),
      (["synthesizer_mtf.tools.hugging_face", "export", "--help"],
       "hugging_face export"),
      (["synthesizer_mtf", "--help"], "mesh_transformer")):
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, text=True,
                          capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (stored_help.FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("command, name", [
    ("-m synthesizer_mtf.tools.benchmark --help", "benchmark.txt"),
    ("-m synthesizer_mtf.tools.benchmark.__main__ --help", "benchmark.txt"),
    ("-m synthesizer_mtf.demo --output=x -h", "demo.txt"),
    ("/bin/synthesizer_hugging_face import --help", "hugging_face import.txt"),
    ("-m synthesizer_mtf.tools.benchmark --attention=V", None),
    ("-m mine.synthesizer_mtf.tools.benchmark --help", None),
    ("-m synthesizer_mtf --help", "mesh_transformer.txt"),
    ("-m synthesizer_mtf --model_dir=x", None),
    ("/home/me/benchmark --help", None),
    (f"{ROOT}/tools/compare_models.py --help", "compare_models.txt"),
    (f"{ROOT}/tools/benchmark --help", "benchmark.txt"),
    ("-c 1 --help", None),
    ("", None)])
def test_only_commands_of_this_package_are_answered_with_a_help(command, name):
  path = stored_help.asked(["python", *command.split()])
  assert (path and path.name) == name


def test_stored_help_is_what_the_parsers_print():
  command = "PYTHONPATH=tests python -m support.stored_help"
  texts = stored_texts.texts()
  assert {*texts, synthesizer_mesh_transformer.HELP.name} == {
      path.name for path in stored_help.FOLDER.iterdir()}
  for name, text in texts.items():  # Python's releases break lines at other places.
    stored = (stored_help.FOLDER / name).read_text(encoding="utf-8")
    assert text.split() == stored.split(), f"write it again: {command}"


def test_help_names_existing_flags_attentions_and_tasks():
  text = TRAINER_HELP
  known = {*flags.FLAGS, "helpfull"}
  assert set(re.findall(r"--(\w+)", text)) <= known
  assert set(functions.SYNTHESIZING_FUNCTIONS) <= set(re.split(r"\s+", text))
  patterns = re.findall(r"\bsynth_[\w*]+", text)
  ours = [name for name in [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
          if name.startswith("synth_") and not name.startswith(OF_STUDIES)]
  assert [n for n in ours if not any(fnmatch.fnmatch(n, p) for p in patterns)] == []
  assert [p for p in patterns if not fnmatch.filter(ours, p)] == []
  examples = [line for line in shell.lines(text) if line.startswith("  synthesizer_")]
  for words in shell.commands("\n".join(examples)):
    for value in recipes.values(words, "gin_param"):
      gin.parse_config(value)


def test_setup_names_the_supported_pythons_on_another_one(tmp_path):
  fake = "import sys; sys.version_info = (3, 14, 0); "
  code = (ROOT / "setup.py").read_text().replace("import sys\n", fake + "\n", 1)
  script = tmp_path / "setup.py"
  script.write_text(code)
  ran = subprocess.run([sys.executable, str(script), "--version"],
                       capture_output=True, text=True, check=False)
  assert ran.returncode == 1
  assert ran.stderr.strip().endswith("use one of those.")
  assert "3.10 to 3.13" in ran.stderr and "3.14" in ran.stderr


def test_editdistance_in_python_has_what_its_users_call():
  functions = runpy.run_path(
      str(ROOT / "requirements" / "editdistance" / "editdistance.py"))
  for name in ("eval", "distance"):
    assert functions[name]("kitten", "sitting") == 3
    assert functions[name](["a", "bc"], ["bc"]) == 1
  for name in ("eval_criterion", "distance_le_than"):
    assert functions[name]("ab", "b", 1) and not functions[name]("ab", "c", 1)


def test_every_dependency_has_a_reason():
  lines = (ROOT / "pyproject.toml").read_text().splitlines()
  first = lines.index("dependencies = [")
  last = lines.index("[tool.setuptools.dynamic]")
  blocks = [(before.strip(), line.strip())
           for before, line in zip(lines[first:last], lines[first + 1:last])
           if line.startswith('  "')]
  assert len(blocks) > 40
  assert [line for before, line in blocks
          if before[:1] not in ("#", '"') and "synthesizer-mtf[" not in line] == []


def test_the_versions_of_the_package_the_changelog_and_the_citation_agree():
  newest, released = re.findall(
      r"^## ([\d.]+) \((?:unreleased|([\d-]+))\)$",
      (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[:2]
  version = synthesizer_mtf.__version__
  assert version == newest[0] + ("" if newest[1] else ".dev0")
  version, date = newest if newest[1] else released
  citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
  assert f"\nversion: {version}\ndate-released: {date}\n" in citation


def test_each_tool_has_a_command():
  commands = {entry.name: entry.value
              for entry in metadata.distribution("synthesizer-mtf").entry_points}
  tools = {path.stem for path in (ROOT / "tools").glob("*.py")
           if re.search(r'__main__":\n  (sys.exit\()?main', path.read_text())} - {
               "prepare_studies"}
  assert {f"synthesizer_{tool}": f"synthesizer_mtf.tools.{tool}:main"
          for tool in tools}.items() <= commands.items()
