"""The environments that `make install` makes, with the real uv and a small package."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from support import clones
from support import scripts
from support.paths import ROOT
from support.processes import LIMIT

VERSION = f"3.{sys.version_info[1]}"

# A hook that leaves a half-installed file.
HALF = 'touch "$(echo "$CLONE"/made/.venv/lib/python*/site-packages)/half"; '


@pytest.fixture
def clone(tmp_path):
  return clones.Clone(tmp_path)


def assert_complete(clone, ran):
  assert (ran.returncode, ran.stderr) == (0, "")
  assert clone.has(".installed")
  assert {"tiny", "ours"} <= clone.packages()


def the_sentence(ran):
  """The only line of a failure."""
  assert ran.returncode == 1
  assert ran.stderr.count("\n") == 1 and ran.stderr.endswith(".\n")
  return ran.stderr


def wait_for(path):
  until = time.time() + LIMIT
  while not path.exists():
    assert time.time() < until, path
    time.sleep(0.02)


def test_an_installation_that_is_complete_is_left_alone(clone):
  """Only Pythons without a wheel of editdistance get the stand-in."""
  assert_complete(clone, clone.install())
  assert ("editdistance" in clone.packages()) == (VERSION == "3.13")
  calls = clone.calls()
  assert clone.calls("--reinstall-package tensorflow-datasets")
  assert not clone.install().stdout
  assert clone.calls() == calls


def test_a_package_with_another_hash_than_the_locked_one_is_refused(clone):
  clone.lock({"tiny": "1.0"}, wrong_hash=True)
  ran = clone.install()
  assert ran.returncode == 1 and "Hash mismatch" in ran.stderr
  assert not clone.has(".installed") and not clone.packages()


def test_uv_gets_the_settings_of_pip(install_module, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  tmp_path.joinpath("pip.conf").write_text(
      "[global]\nindex-url = https://conf/simple\nretries = 3\n")
  mirrors = {"PIP_INDEX_URL": "https://m", "PIP_EXTRA_INDEX_URL": "https://a https://b"}
  for settings, variable, value in [
      (mirrors, "UV_INDEX", "https://m https://a"),
      (mirrors, "UV_DEFAULT_INDEX", "https://b"),
      ({"PIP_EXTRA_INDEX_URL": "https://a", "UV_INDEX": "https://uv"}, "UV_INDEX",
       "https://uv"),
      ({"PIP_FIND_LINKS": "/a /b"}, "UV_FIND_LINKS", "/a,/b"),
      ({"PIP_NO_CACHE_DIR": "off"}, "UV_NO_CACHE", None),
      ({"PIP_TRUSTED_HOST": "a b:80"}, "UV_INSECURE_HOST", "a b:80"),
      ({"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://uv"},
       "UV_DEFAULT_INDEX", "https://uv"),
      ({"PIP_CONFIG_FILE": "pip.conf"}, "UV_DEFAULT_INDEX", "https://conf/simple"),
      ({"PIP_CONFIG_FILE": "pip.conf", "PIP_INDEX_URL": "https://a"},
       "UV_DEFAULT_INDEX", "https://a")]:
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_"))]:
      monkeypatch.delenv(name)
    for name, text in {"PIP_CONFIG_FILE": os.devnull, **settings}.items():
      monkeypatch.setenv(name, text)
    value_there = install_module.Uv("uv", sys.executable).environment.get(variable)
    assert value_there == value, settings


@pytest.fixture
def install_module():
  return scripts.load("install")


def test_a_newer_lock_file_renews_the_environment(clone):
  clone.install()
  subprocess.run([clones.UV, "pip", "install", "--quiet", "--no-index", "--python",
                  clone.environment, clone.wheels / clones.write_wheel(
                      clone.wheels, "jupyter", "1.0", {})], check=True)
  clone.lock({"tiny": "2.0"})
  clone.renew()
  assert_complete(clone, clone.install())
  assert "jupyter" in clone.packages()
  metadata, = clone.environment.rglob("tiny-*.dist-info")
  assert metadata.name == "tiny-2.0.dist-info"


@pytest.mark.parametrize("hook, said", [
    ("kill -9 $PPID; sleep 0.2", ""),
    ("kill -2 $PPID; sleep 0.2; exit 1", "interrupted"),
    ("echo No space left >&2; exit 1", "No space left\n")])
def test_a_failed_or_interrupted_installation_is_made_anew(clone, hook, said):
  clone.hook(HALF + hook)
  ran = clone.install()
  assert ran.returncode and said in ran.stderr and "Traceback" not in ran.stderr
  assert not clone.has(".installed") and list(clone.environment.rglob("half"))
  clone.hook(":")
  ran = clone.install()
  assert "made anew" in ran.stdout
  assert_complete(clone, ran)
  assert not list(clone.environment.rglob("half"))


def kill_in_a_renewal(clone):
  clone.renew()
  clone.hook("kill -9 $PPID")
  clone.install()
  assert not clone.has(".installed")


def kill_in_a_removal(clone):
  another_python(clone, "echo 3.9")
  clone.add("hook", 'case "$*" in "venv --quiet"*) rm "$CLONE"/made/.venv/pyvenv.cfg\n'
                    "kill -9 $PPID; exit ;; esac\n")
  assert clone.install().returncode


def leave_as_an_earlier_version_did(clone):
  (clone.environment / ".unfinished").touch()


def another_python(clone, script="exit 127"):
  clone.add("made/.venv/bin/python", f"#!/bin/sh\n{script}\n")


@pytest.mark.parametrize("harm", [
    kill_in_a_renewal, kill_in_a_removal, leave_as_an_earlier_version_did,
    another_python])
def test_an_environment_that_is_not_trusted_is_made_anew(clone, harm):
  clone.install()
  harm(clone)
  clone.hook(":")
  ran = clone.install()
  assert "made anew" in ran.stdout
  assert_complete(clone, ran)


@pytest.mark.parametrize("killed", [False, True])
def test_two_installations_take_turns_even_if_the_first_is_killed(clone, killed):
  clone.hook('touch "$CLONE/busy"; while [ ! -e "$CLONE/go" ]; do sleep 0.02; done')
  first = clone.start()
  wait_for(clone.folder / "busy")
  if killed:
    first.kill()  # Its uv goes on.
  second = clone.start()
  assert "waiting for it" in second.stdout.readline()
  (clone.folder / "go").touch()
  first.communicate(timeout=LIMIT)
  out, _ = second.communicate(timeout=LIMIT)
  assert second.returncode == 0 and bool(first.returncode) == killed
  assert clone.has(".installed") and ("made anew" in out) == killed
  assert killed or not out and len(clone.calls("--dry-run")) == 1


def test_a_renewal_that_fails_at_the_start_changes_nothing(clone):
  clone.install()
  (clone.environment / "kept").touch()
  clone.renew()
  clone.add("hook", 'case "$*" in *--dry-run*) exit 1 ;; esac\n')
  assert "PIP_FIND_LINKS" in the_sentence(clone.install())
  assert "tiny" in clone.packages()
  clone.hook(":")
  assert_complete(clone, clone.install())
  assert clone.has("kept")


def test_an_installation_whose_packages_do_not_fit_is_not_complete(clone):
  clone.add("hook", 'case "$*" in "pip check"*) exit 1 ;; esac\n')
  assert clone.install().returncode == 1
  assert not clone.has(".installed")


def test_a_full_disk_is_one_sentence_at_the_start_and_at_the_last_file(clone):
  ran = clone.install(
      "shutil.disk_usage = lambda folder: types.SimpleNamespace(free=5.9e9)")
  assert "5.9 GB free" in the_sentence(ran)
  assert not clone.environment.exists() and not clone.calls()
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


def test_other_files_in_the_place_of_an_environment_are_refused_and_kept(clone):
  clone.environment.parent.mkdir()
  clone.environment.touch()
  assert "is no environment" in the_sentence(clone.install())
  clone.environment.unlink()
  clone.environment.mkdir()
  (clone.environment / "thesis.tex").touch()
  assert "is no environment" in the_sentence(clone.install())
  assert clone.environment.joinpath("thesis.tex").exists()


def test_pip_fetches_the_locked_uv_if_there_is_none(clone):
  clone.add("bin/uv", "#!/bin/sh\n")  # Looks like a uv that is too old.
  clone.lock({"tiny": "1.0", "uv": "1.0"}, files={"uv": {
      "uv-1.0.data/scripts/uv": clones.LOGGED.format(uv=clones.UV)}})
  assert_complete(clone, clone.install())
  assert clone.calls("pip install")


class TestPython:
  """The choice of an environment's Python among those that uv finds."""

  @pytest.fixture
  def choose(self, install_module, monkeypatch, tmp_path):
    """A function of the Pythons that uv finds, and of the environment's version."""
    monkeypatch.delenv("PYTHON", raising=False)
    known = {"/3.9": "3.9", "/3.11": "3.11", "/3.13": "3.13"}

    class Uv:
      find = staticmethod(lambda name: machine.get(name, ""))

      def __call__(self, *words, remedy):
        assert words[:2] == ("python", "install") and "apt install" in remedy
        machine[words[2]] = "/3.13"

    def choose(pythons, own="", name=""):
      if name:
        monkeypatch.setenv("PYTHON", name)
      machine.clear()
      machine.update(pythons)
      monkeypatch.setattr(install_module, "_version", lambda python: known.get(
          python, own if "bin" in str(python) else ""))
      return install_module._choose_python(tmp_path, Uv())

    machine = {}
    return choose

  def test_the_first_that_fits_is_taken_unless_there_is_one_or_one_is_named(
      self, choose, capsys):
    both = {">=3.10,<3.14": "/3.11", "3.13": "/3.13"}
    assert choose(both) == "/3.11"
    assert choose(both, own="3.13") == "/3.13"
    assert choose({}) == "/3.13"
    assert "uv downloads one" in capsys.readouterr().out
    assert choose({"python3.11": "/3.11", "3.13": "/3.13"}, own="3.13",
                  name="python3.11") == "/3.11"

  def test_a_named_python_that_does_not_fit_is_refused(self, choose):
    for pythons, sentence in [
        ({}, "other is missing"), ({"other": "/pypy"}, "or is no CPython"),
        ({"other": "/3.9"}, "3.10 to 3.13, .* other is Python 3.9")]:
      with pytest.raises(SystemExit, match=sentence):
        choose({**pythons, ">=3.10,<3.14": "/3.13"}, name="other")

  def test_only_a_cpython_with_the_global_lock_has_a_version(
      self, install_module, clone):
    for statement, version in [
        ("", VERSION), ('sys.implementation.name = "pypy"', ""),
        ('sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1', "")]:
      python = clone.add("python", f"""#!/bin/sh
exec {sys.executable} -S -c 'import sys, sysconfig
{statement}
exec(sys.argv[1])' "$2"
""")
      assert install_module._version(python) == version

  def test_pythons_of_pyenv_come_last_and_its_shims_are_left_out(
      self, install_module, monkeypatch, tmp_path):
    for name in ("3.12.1", "3.13.0"):
      (tmp_path / "versions" / name / "bin").mkdir(parents=True)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin")
    uv = install_module.Uv("uv", sys.executable)
    assert uv.environment["PATH"].split(":") == [
        "/usr/bin", *(f"{tmp_path}/versions/{n}/bin" for n in ("3.13.0", "3.12.1"))]


# Two Pythons: one can make environments, the other cannot.
COMPLETE = '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$0" "$@"\n'
INCOMPLETE = COMPLETE.replace("exit 0", "exit 1")


def test_install_sh_starts_any_python_that_can_make_environments_or_uv(clone):
  """The machine has only the test's programs."""
  clone.add("clone/requirements/install.py", "")
  (clone.folder / "bin" / "uv").unlink()
  (clone.folder / "bin" / "dirname").symlink_to(shutil.which("dirname"))

  def start():
    return subprocess.run(
        ["/bin/sh", str(clone.requirements / "install.sh"), ".venv"], text=True,
        capture_output=True, check=False, timeout=LIMIT,
        env={"PATH": str(clone.folder / "bin"), "HOME": str(clone.folder)})

  clone.add("bin/python3", INCOMPLETE)
  sentence = the_sentence(start())
  for words in ("apt install python3-venv", "brew install python@3.13", "uv"):
    assert words in sentence
  uv = clone.add("bin/uv", INCOMPLETE)
  assert "bin/uv run --no-project --python >=3.10,<3.14" in start().stdout
  uv.unlink()
  python = clone.add("bin/python3.11", COMPLETE)
  assert start().stdout == f"{python} {clone.requirements}/install.py .venv\n"
  python.unlink()
  clone.add("bin/python3", "#!/bin/sh\nexit 127\n")
  python = clone.add(".pyenv/versions/3.12.1/bin/python", COMPLETE)
  assert start().stdout.startswith(str(python))


class TestMake:
  """`make install` in that clone, with a fake script in the place of ours."""

  @pytest.fixture
  def make(self, clone):
    """A function that runs make with further words; says if it called the script."""
    shutil.copy(ROOT / "Makefile", clone.folder / "clone")
    called = clone.folder / "called"

    def run(*words, target="install"):
      called.unlink(missing_ok=True)
      (clone.requirements / "install.sh").write_text(f"echo $PYTHON > '{called}'\n")
      os.utime(clone.requirements / "install.sh", (1, 1))
      return subprocess.run(
          ["make", target, f"VENV={clone.environment}", *words], check=True, text=True,
          cwd=clone.folder / "clone", capture_output=True, timeout=LIMIT,
          env=clone.variables() | {"PYTHON": ""}), called.exists()
    return run

  def test_the_script_is_called_unless_the_environment_is_complete(self, clone, make):
    assert make()[1]
    shutil.copy(ROOT / "requirements" / "install.sh", clone.requirements)
    clone.install()
    assert not make()[1]
    assert make("PYTHON=python3.7")[1]
    assert (clone.folder / "called").read_text() == "python3.7\n"
    (clone.environment / "bin" / "python").unlink()
    assert make()[1]

  def test_both_stacks_have_an_environment_of_their_own(self, clone, make):
    printed = make("--dry-run", target="test-both")[0].stdout
    for name in (f"{clone.environment}-new", f"{clone.environment}-old"):
      assert f'install.sh "{name}"' in printed
      assert f"{name}/bin/python -m pytest" in printed
