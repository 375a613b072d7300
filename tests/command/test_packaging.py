"""Tests of what is installed: the command, its flags and its files."""

import ast
import os
import runpy
import subprocess
import sys
import tempfile

from absl import flags
import gin
import pytest
from support.paths import ROOT
from synthesizer_mtf import gin_files
from synthesizer_mtf import launcher
from synthesizer_mtf.command import messages
from t5.models import mesh_transformer_main


def _user_flags(module):
  found = flags.FLAGS.flags_by_module_dict()
  return {flag.name for flag in found.get(module, [])}


def test_launcher_takes_exactly_the_flags_of_t5():
  assert not _user_flags(launcher.__name__)
  assert "model_dir" in _user_flags(mesh_transformer_main.__name__)


def test_gin_folder_holds_the_gin_files():
  assert os.path.isfile(os.path.join(gin_files.folder(), "cpu.gin"))


def test_gin_folder_is_never_a_package():
  assert not list((ROOT / "gin").rglob("__init__.py"))


def test_gin_files_are_found_from_any_directory(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  gin_files.add_search_path()
  gin.parse_config_file("cpu.gin")
  assert gin.query_parameter("utils.run.mesh_devices") == ["cpu:0"]


def test_command_calls_the_launcher():
  text = (ROOT / "setup.py").read_text()
  assert '"synthesizer_mesh_transformer = synthesizer_mesh_transformer:main"' in text


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
  found = runpy.run_path(
      str(ROOT / "requirements" / "editdistance" / "editdistance.py"))
  for name in ("eval", "distance"):
    assert found[name]("kitten", "sitting") == 3
    assert found[name](["a", "bc"], ["bc"]) == 1
  for name in ("eval_criterion", "distance_le_than"):
    assert found[name]("ab", "b", 1) and not found[name]("ab", "c", 1)


def test_every_pinned_dependency_has_a_reason():
  lines = (ROOT / "setup.py").read_text().splitlines()
  first, last = lines.index("INSTALL_REQUIRES = ["), lines.index("]")
  for before, line in zip(lines[first:last], lines[first + 1:last]):
    if line.strip().startswith('"'):
      assert before.strip().startswith("#") or before.strip().startswith('"')
  assert ast.parse("\n".join(lines))


@pytest.mark.parametrize("error, sentence", [
    (ValueError("`a.b` is 3;\n raise it."), "`a.b` is 3; raise it."),
    (ValueError("No.\n  In call to configurable 'run' (<x>)"), "No."),
    (SyntaxError("bad", ("f.gin", 3, 1, "a = =\n")), "f.gin: bad a = ="),
    (ValueError("No bindings for 'x/gin.macro' in config string: \na = 3\n."),
     "No bindings for 'x/gin.macro'"),
])
def test_last_line_of_a_mistake_is_its_message(error, sentence, capsys):
  messages.report(error)
  assert capsys.readouterr().err.splitlines()[-1] == (
      f"synthesizer_mesh_transformer: {sentence}")


def test_last_line_names_the_binding_that_a_message_only_cites(capsys):
  gin.parse_config("FILE = '/no/such.txt'")
  messages.report(FileNotFoundError("/no/such.txt; No such file"))
  assert capsys.readouterr().err.splitlines()[-1].endswith(
      "/no/such.txt; No such file (FILE = '/no/such.txt')")


@pytest.mark.usefixtures("parsed_flags")
def test_unexpected_errors_keep_their_traceback(monkeypatch):
  def fail(_):
    raise KeyError("ours")
  monkeypatch.setattr(mesh_transformer_main, "main", fail)
  with pytest.raises(KeyError):
    launcher.main([])


@pytest.mark.usefixtures("parsed_flags")
def test_a_mistake_exits_with_status_1(monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  def fail(_):
    raise ValueError("theirs")
  monkeypatch.setattr(mesh_transformer_main, "main", fail)
  with pytest.raises(SystemExit) as exit_info:
    launcher.main([])
  assert exit_info.value.code == 1
