"""What `make install` leaves behind, with fake Pythons that install nothing."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from support.paths import ROOT

SECONDS = 60

# Makes an environment, or writes down how pip was called and does what a test says.
FAKE_PYTHON = f"""#!/bin/sh
for last; do :; done
case "$*" in
  *"-m venv "*)
    mkdir -p "$last/bin" "$last/lib/python3/site-packages/pip"
    cp "$0" "$last/bin/python"
    echo 'version = 3.{sys.version_info[1]}.99' > "$last/pyvenv.cfg" ;;
  *"-m pip "*)
    packages=$(dirname "$0")/../lib/python3/site-packages
    echo "${{PIP_NO_INDEX-}}|${{PIP_FIND_LINKS-}}|$*" >> "$FAKE/log"
    case "$*" in */dev/stdin) cat > "$FAKE/stdin" ;; esac
    [ ! -e "$FAKE/pip" ] || . "$FAKE/pip" ;;
esac
"""

# Runs a script after a statement, with that fake Python as its own.
RUN = """
import os, pathlib, runpy, shutil, signal, sys, types
# Which whoever starts tests in the background may have switched off.
signal.signal(signal.SIGINT, signal.default_int_handler)
script, sys.executable, statement, *words = sys.argv[1:]
shutil.disk_usage = lambda folder: types.SimpleNamespace(free=1e12)
exec(statement)
sys.argv = [script, *words]
runpy.run_path(script, run_name="__main__")
"""


class Clone:
  """A clone of what an installation reads, and an environment."""

  def __init__(self, folder):
    self.folder = folder
    self.environment = folder / "work" / ".venv"
    self.python = folder / "python"
    self.python.write_text(FAKE_PYTHON)
    self.python.chmod(0o755)
    (folder / "clone").mkdir()
    shutil.copytree(ROOT / "requirements", folder / "clone" / "requirements")
    for name in ("setup.py", "pyproject.toml"):
      shutil.copy(ROOT / name, folder / "clone" / name)

  def start(self, statement="", **environment):
    return subprocess.Popen(
        [sys.executable, "-S", "-c", RUN,
         str(self.folder / "clone" / "requirements" / "install.py"),
         str(self.python), statement, str(self.environment)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "FAKE": str(self.folder), **environment})

  def install(self, statement="", **environment):
    process = self.start(statement, **environment)
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess([], process.returncode, out, err)

  def let_pip(self, do):
    """What each call of pip does, in shell; nothing at first."""
    (self.folder / "pip").write_text(do)

  def calls(self):
    log = self.folder / "log"
    return log.read_text().splitlines() if log.exists() else []

  def has(self, name):
    return os.path.lexists(self.environment / name)


@pytest.fixture
def clone(tmp_path):
  return Clone(tmp_path)


def assert_complete(clone, ran):
  assert (ran.returncode, ran.stderr) == (0, "")
  assert clone.has(".installed") and not clone.has(".unfinished")


def the_sentence(ran):
  """The only line of a failure."""
  assert ran.returncode == 1
  assert ran.stderr.count("\n") == 1 and ran.stderr.endswith(".\n")
  return ran.stderr


def wait_for(path):
  until = time.time() + SECONDS
  while not path.exists():
    assert time.time() < until, path
    time.sleep(0.02)


def test_an_installation_that_is_complete_is_left_alone(clone):
  assert_complete(clone, clone.install())
  calls = clone.calls()
  assert calls and not clone.install().stdout
  assert clone.calls() == calls


def test_packages_are_installed_with_the_hashes_of_the_lock_file(clone):
  clone.install()
  lock = ("python3.12-3.13.txt" if sys.version_info >= (3, 12) else
          "python3.10-3.11.txt")
  builders, locked, ours, check = clone.calls()
  assert "--require-hashes" in builders and "--require-hashes" in locked
  assert locked.endswith(lock) and ours.endswith("clone[test]")
  assert check.endswith("pip check")
  assert (clone.folder / "stdin").read_text().count(" ; ") == 4


def test_a_folder_of_wheels_reaches_pip(clone):
  clone.install(PIP_NO_INDEX="1", PIP_FIND_LINKS="/the/wheels")
  assert clone.calls()
  assert all(call.startswith("1|/the/wheels|") for call in clone.calls())


def test_a_newer_lock_file_renews_what_is_there(clone):
  clone.install()
  (clone.environment / "kept").touch()
  for path in (clone.folder / "clone" / "requirements").iterdir():
    os.utime(path, (time.time() + 5, time.time() + 5))
  assert_complete(clone, clone.install())
  assert clone.has("kept") and len(clone.calls()) == 8


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_installation_is_made_anew(clone, number):
  clone.let_pip(f'touch "$packages/half"; kill -{int(number)} $PPID; sleep 0.2')
  assert clone.install().returncode
  assert not clone.has(".installed")
  clone.let_pip("")
  ran = clone.install()
  assert "made anew" in ran.stdout
  assert_complete(clone, ran)
  assert not clone.has("lib/python3/site-packages/half")


def test_an_interruption_is_one_sentence(clone):
  clone.let_pip("kill -2 $PPID; sleep 0.2")
  assert "interrupted" in the_sentence(clone.install())


def test_an_interrupted_renewal_is_not_trusted(clone):
  clone.install()
  os.utime(clone.environment / ".installed", (1, 1))
  clone.let_pip("kill -9 $PPID")
  clone.install()
  assert not clone.has(".installed") and clone.has(".unfinished")


def test_an_environment_of_another_python_is_made_anew(clone):
  clone.install()
  (clone.environment / "pyvenv.cfg").write_text("version = 3.9.18\n")
  ran = clone.install()
  assert "made anew" in ran.stdout
  assert_complete(clone, ran)


def test_an_interrupted_removal_is_not_trusted(clone):
  clone.install()
  (clone.environment / "pyvenv.cfg").write_text("version = 3.9.18\n")
  ran = clone.install("shutil.rmtree = lambda path: os._exit(9)")
  assert ran.returncode == 9 and not clone.has(".installed")
  ran = clone.install()
  assert "made anew" in ran.stdout
  assert_complete(clone, ran)


def test_an_environment_whose_python_is_gone_is_made_anew(clone):
  clone.install()
  python = clone.environment / "bin" / "python"
  python.unlink()
  python.symlink_to("/no/such/python")
  ran = clone.install()
  assert "made anew" in ran.stdout
  assert_complete(clone, ran)
  assert python.exists()


def test_an_environment_without_pip_gets_one(clone):
  clone.install()
  (clone.environment / "kept").touch()
  (clone.environment / ".installed").unlink()
  pip = clone.environment / "lib" / "python3" / "site-packages" / "pip"
  pip.rmdir()
  assert_complete(clone, clone.install())
  assert pip.exists() and clone.has("kept")


def test_two_at_once_take_turns(clone):
  clone.let_pip('touch "$FAKE/busy"; '
                'while [ ! -e "$FAKE/go" ]; do sleep 0.02; done')
  first = clone.start()
  wait_for(clone.folder / "busy")
  second = clone.start()
  assert "waiting for it" in second.stdout.readline()
  (clone.folder / "go").touch()
  for process in (first, second):
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
  assert not out and len(clone.calls()) == 4


def test_the_pip_of_a_killed_installation_is_waited_for(clone):
  clone.let_pip('touch "$FAKE/busy"; '
                'while [ ! -e "$FAKE/go" ]; do sleep 0.02; done')
  first = clone.start()
  wait_for(clone.folder / "busy")
  first.kill()
  second = clone.start()
  assert "waiting for it" in second.stdout.readline()
  (clone.folder / "go").touch()
  out, _ = second.communicate(timeout=SECONDS)
  assert "made anew" in out and second.returncode == 0
  assert clone.has(".installed")


def test_too_little_space_is_one_sentence_and_nothing_is_made(clone):
  ran = clone.install(
      "shutil.disk_usage = lambda folder: types.SimpleNamespace(free=5.9e9)")
  assert "5.9 GB free" in the_sentence(ran)
  assert not clone.environment.exists() and not clone.calls()


def test_a_pip_that_fails_on_the_way_leaves_nothing_to_trust(clone):
  clone.let_pip('touch "$packages/half"; echo No space left >&2; exit 1')
  ran = clone.install()
  assert ran.returncode == 1 and ran.stderr.startswith("No space left\n")
  assert not clone.has(".installed") and clone.has(".unfinished")
  clone.let_pip("")
  assert_complete(clone, clone.install())
  assert not clone.has("lib/python3/site-packages/half")


def test_a_pip_that_fails_at_the_start_changes_nothing(clone):
  clone.install()
  (clone.environment / "kept").touch()
  os.utime(clone.environment / ".installed", (1, 1))
  clone.let_pip("exit 1")
  assert "PIP_FIND_LINKS" in the_sentence(clone.install())
  assert not clone.has(".installed")
  clone.let_pip("")
  assert_complete(clone, clone.install())
  assert clone.has("kept")


def test_packages_that_do_not_fit_leave_nothing_to_trust(clone):
  clone.let_pip('case "$*" in *"pip check") exit 1 ;; *) touch "$packages/x" ;; esac')
  assert clone.install().returncode == 1
  assert not clone.has(".installed")


def test_a_disk_that_is_full_at_the_last_file_is_one_sentence(clone):
  ran = clone.install("""
touch = pathlib.Path.touch
def full(path, **kwargs):
  if path.name == ".installed":
    raise OSError(28, "No space left on device")
  touch(path, **kwargs)
pathlib.Path.touch = full
""")
  assert "No space left on device" in the_sentence(ran)
  assert not clone.has(".installed")


def test_a_folder_of_something_else_is_refused_and_kept(clone):
  clone.environment.mkdir(parents=True)
  (clone.environment / "thesis.tex").touch()
  assert "is no environment" in the_sentence(clone.install())
  assert clone.environment.joinpath("thesis.tex").exists()


def test_a_file_in_the_place_of_the_environment_is_one_sentence(clone):
  clone.environment.parent.mkdir()
  clone.environment.touch()
  assert "did not finish" in the_sentence(clone.install())


MAKE = pathlib.Path(shutil.which("make") or "/no/make")


@pytest.mark.skipif(not MAKE.exists(), reason="there is no make")
class TestMake:
  """`make install` in that clone, with a fake script in the place of ours."""

  @pytest.fixture
  def make(self, clone):
    """A function of further words, which tells whether the script was called."""
    shutil.copy(ROOT / "Makefile", clone.folder / "clone")
    called = clone.folder / "called"
    script = clone.folder / "clone" / "requirements" / "install.py"

    def run(*words):
      script.write_text(f"open({str(called)!r}, 'w').close()")
      subprocess.run(
          [MAKE, "install", f"VENV={clone.environment}", *words], check=True,
          cwd=clone.folder / "clone", capture_output=True, timeout=SECONDS,
          env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")})
      return called.exists()
    return run

  def test_a_complete_environment_is_not_looked_at(self, clone, make):
    clone.install()
    assert not make()

  def test_what_is_not_complete_is_installed(self, make):
    assert make()

  def test_a_python_that_is_named_is_looked_at(self, clone, make):
    clone.install()
    assert make(f"PYTHON={sys.executable}")

  def test_an_environment_whose_python_is_gone_is_looked_at(self, clone, make):
    clone.install()
    (clone.environment / "bin" / "python").unlink()
    assert make()
