"""Which Python `make` chooses, among fake ones on a made-up path and pyenv."""

import subprocess
import sys

import pytest
from support.paths import ROOT

SCRIPT = ROOT / "requirements" / "find_python.sh"


class Machine:
  """A machine whose only Pythons are the ones that a test puts there."""

  def __init__(self, folder):
    self.folder = folder
    self.path = folder / "bin"
    self.path.mkdir()

  def add(self, name, version, complete=True, folder=None):
    """Puts a Python there, which tells its version; returns its path."""
    python = (folder or self.path) / name
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\necho {version} {int(complete)}\n")
    python.chmod(0o755)
    return python

  def add_to_pyenv(self, release, root=".pyenv"):
    version = release.rpartition(".")[0]
    return self.add("python", version, folder=self.folder / root / "versions" /
                    release / "bin")

  def find(self, *words, **environment):
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *words], capture_output=True, text=True,
        check=False, timeout=60, env={
            "PATH": str(self.path), "HOME": str(self.folder), **environment})


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


def assert_found(python, ran):
  assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", f"{python}\n")


def the_sentence(ran):
  """The only line of a failure, which is on standard error."""
  assert ran.returncode == 1 and not ran.stdout
  assert ran.stderr.count("\n") == 1 and ran.stderr.endswith(".\n")
  return ran.stderr


ORDER = ["3.13", "3.12", "3.11", "3.10"]


@pytest.mark.parametrize("first", range(len(ORDER)))
@pytest.mark.parametrize("python3", ["3.9", "3.14"])
def test_the_newest_is_found_whatever_python3_is(machine, first, python3):
  machine.add("python3", python3)
  added = {version: machine.add(f"python{version}", version)
           for version in ORDER[first:]}
  assert_found(added[ORDER[first]], machine.find())


@pytest.mark.parametrize("version", ORDER)
def test_python3_is_found_where_it_is_the_only_one(machine, version):
  assert_found(machine.add("python3", version), machine.find())


def test_pythons_of_pyenv_are_found(machine):
  machine.add("python3", "3.14")
  assert_found(machine.add_to_pyenv("3.12.1"), machine.find())


def test_pyenv_may_lie_elsewhere(machine):
  python = machine.add_to_pyenv("3.12.1", root="elsewhere")
  assert_found(python, machine.find(PYENV_ROOT=str(machine.folder / "elsewhere")))


def test_a_home_is_not_needed(machine):
  python = machine.add("python3.12", "3.12")
  ran = subprocess.run(["/bin/sh", str(SCRIPT)], capture_output=True, text=True,
                       check=False, env={"PATH": str(machine.path)})
  assert_found(python, ran)


def test_a_link_of_pyenv_to_no_python_is_passed_over(machine):
  shim = machine.add("python3.11", "3.11")
  shim.write_text("#!/bin/sh\necho 'pyenv: python3.11: not found' >&2\nexit 127\n")
  assert_found(machine.add_to_pyenv("3.11.7"), machine.find())


def test_a_python_without_venv_is_passed_over_for_another(machine):
  machine.add("python3.11", "3.11", complete=False)
  assert_found(machine.add("python3.12", "3.12"), machine.find())


def test_a_python_without_venv_alone_gets_what_to_type(machine):
  machine.add("python3", "3.11", complete=False)
  sentence = the_sentence(machine.find())
  assert "python3 (Python 3.11) cannot make environments" in sentence
  assert "apt install python3.11-venv" in sentence


def test_without_any_python_the_sentence_tells_what_to_type(machine):
  sentence = the_sentence(machine.find())
  for words in ("apt install python3-venv", "brew install python@3.12",
                "uv python install 3.12"):
    assert words in sentence


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.14", "4.11"])
def test_unsupported_pythons_alone_get_the_same_sentence(machine, version):
  machine.add("python3", version)
  machine.add(f"python{version}", version)
  assert "TensorFlow has wheels for no other" in the_sentence(machine.find())


def test_only_pythons_of_the_range_are_looked_at(machine):
  machine.add("python3.11", "3.11")
  python = machine.add("python3.12", "3.12")
  assert_found(python, machine.find("3.12", "3.14"))


def test_the_python_that_is_named_is_taken(machine):
  machine.add("python3.11", "3.11")
  assert_found(machine.add("python3.10", "3.10"),
               machine.find(PYTHON="python3.10"))


def test_a_missing_python_is_named(machine):
  machine.add("python3.11", "3.11")
  assert "There is no python3.12" in the_sentence(machine.find(PYTHON="python3.12"))


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.14"])
def test_an_unsupported_python_is_named(machine, version):
  machine.add("python3.11", "3.11")
  machine.add("other", version)
  sentence = the_sentence(machine.find(PYTHON="other"))
  assert f"other is Python {version}" in sentence and "3.10 to 3.13" in sentence


def test_a_named_python_without_venv_is_told_what_to_type(machine):
  machine.add("other", "3.12", complete=False)
  assert "python3.12-venv" in the_sentence(machine.find(PYTHON="other"))


def disguise(python, statement):
  """Makes a fake Python the real one of these tests, after a statement."""
  python.write_text(f"""#!/bin/sh
exec {sys.executable} -S -c 'import sys, sysconfig
{statement}
exec(sys.argv[1])' "$2"
""")


@pytest.mark.parametrize("statement, taken", [
    ("", True),
    ('sys.implementation.name = "pypy"', False),
    ('sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1', False),
    ('sys.modules["ensurepip"] = None', False),
    ('sys.modules["venv"] = None', False),
])
def test_only_a_complete_cpython_is_taken(machine, statement, taken):
  version = f"3.{sys.version_info[1]}"
  python = machine.add(f"python{version}", version)
  disguise(python, statement)
  if taken:
    assert_found(python, machine.find())
  else:
    assert the_sentence(machine.find())


def test_an_environment_keeps_its_python(machine):
  base = machine.add("base", "3.10")
  machine.add("python3.11", "3.11")
  python = machine.add("python", "3.10", folder=machine.folder / ".venv" / "bin")
  python.write_text(f"#!/bin/sh\necho {base}\n")
  assert_found(base, machine.find(VENV=str(machine.folder / ".venv")))


def test_the_python_of_a_real_environment_lies_outside_of_it(machine):
  environment = machine.folder / ".venv"
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)],
                 check=True)
  found = machine.find(VENV=str(environment)).stdout
  assert found == f"{sys.base_prefix}/bin/python3.{sys.version_info[1]}\n"


@pytest.mark.parametrize("answer", ["exit 1", "echo /no/such/python"])
def test_an_environment_whose_python_is_gone_does_not_count(machine, answer):
  other = machine.add("python3.11", "3.11")
  python = machine.add("python", "3.10", folder=machine.folder / ".venv" / "bin")
  python.write_text(f"#!/bin/sh\n{answer}\n")
  assert_found(other, machine.find(VENV=str(machine.folder / ".venv")))
