"""Which stack `make test-both` and continuous integration run which tests on."""

import shutil
import subprocess

import pytest
from support.paths import ROOT

# What the fake `make` is told, and an environment of the Python that it stands for.
FAKE_MAKE = """#!/bin/sh
echo "$*" >> "$FAKE/log"
[ "$FAIL" != "$*" ] || exit 2
case "$1" in *=.venv)
  mkdir -p .venv/bin
  printf '#!/bin/sh\\nexit %s\\n' "$OLD" > .venv/bin/python
  chmod +x .venv/bin/python ;;
esac
"""


@pytest.fixture
def run(tmp_path):
  """A function of the stack of `.venv` and the machine's Pythons."""
  tools = tmp_path / "bin"
  tools.mkdir()
  for name in ("dirname", "mkdir", "chmod", "sh"):
    (tools / name).symlink_to(shutil.which(name))
  (tools / "make").write_text(FAKE_MAKE)
  (tools / "make").chmod(0o755)
  clone = tmp_path / "clone"
  shutil.copytree(ROOT / "requirements", clone / "requirements")

  def run(old, pythons, *targets, fail=""):
    for version in pythons:
      python = tools / f"python{version}"
      python.write_text(f"#!/bin/sh\necho {version} 1\n")
      python.chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", "requirements/test_both.sh", *targets], cwd=clone, text=True,
        capture_output=True, check=False, timeout=60, env={
            "PATH": str(tools), "HOME": str(tmp_path), "FAKE": str(tmp_path),
            "OLD": str(int(old)), "FAIL": fail})
    log = (tmp_path / "log").read_text().replace(str(tools) + "/", "")
    return ran, log.splitlines()
  return run


@pytest.mark.parametrize("old, other", [(False, "3.11"), (True, "3.13")])
def test_the_other_stack_follows_the_first(run, old, other):
  ran, log = run(old, ["3.10", "3.11", "3.12", "3.13"], "test", "quick")
  assert ran.returncode == 0
  assert log == ["VENV=.venv PYTHON= test",
                 f"VENV=.venv-other PYTHON=python{other} quick"]


def test_without_words_both_run_all_tests(run):
  _, log = run(False, ["3.10", "3.13"])
  assert [line.split()[-1] for line in log] == ["test", "test"]


@pytest.mark.parametrize("old, pythons, stack", [
    (False, ["3.12", "3.13"], "TensorFlow 2.15"),
    (True, ["3.10", "3.11"], "TensorFlow 2.21")])
def test_a_stack_without_a_python_is_named_and_left_out(run, old, pythons, stack):
  ran, log = run(old, pythons)
  assert ran.returncode == 0 and len(log) == 1
  assert f"There is no Python for {stack}" in ran.stdout


@pytest.mark.parametrize("fail, calls", [
    ("VENV=.venv PYTHON= test", 1),
    ("VENV=.venv-other PYTHON=/python3.11 test", 2)])
def test_a_failure_on_either_stack_is_one_of_all(run, fail, calls, tmp_path):
  ran, log = run(False, ["3.11", "3.13"],
                 fail=fail.replace("/", f"{tmp_path}/bin/"))
  assert ran.returncode and len(log) == calls
