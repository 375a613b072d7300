"""Makes an environment from the lock file of its Python, with uv.

    sh requirements/install.sh .venv

`make install` calls it. PYTHON names the Python, as in python3.11, 3.11 or a path.
Else an environment keeps the one it has, and a new one gets the first of PYTHONS
("3.13 3.12 3.11 3.10") on the path or in pyenv; where there is none, uv downloads it.

An environment is complete once it holds the file `.installed`, which is written last.
While the lock beside it says so it is half made, and the next call makes it anew. Two
calls at once take turns. Only the standard library is used: nothing else is there yet.
"""

import ast
import contextlib
import fcntl
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
OLD, NEW = (ROOT / "requirements" / name
            for name in ("python3.10-3.11.txt", "python3.12-3.13.txt"))
LOCK_FILES = {"3.13": NEW, "3.12": NEW, "3.11": OLD, "3.10": OLD}
STAND_INS = {"3.13": [str(ROOT / "requirements" / "editdistance")]}  # It has no wheel.
NEEDED = 6e9  # Bytes: what is installed, and what is unpacked on the way.

# Prints the version, as in 3.11. TensorFlow has no wheels for PyPy, nor for a Python
# without the lock of threads.
ASK = """
import sys, sysconfig
if sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"):
  print("%d.%d" % sys.version_info[:2])
"""

# pip's settings, and the variables in which uv looks for the same.
SETTINGS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
            "find-links": "UV_FIND_LINKS", "no-cache-dir": "UV_NO_CACHE",
            "trusted-host": "UV_INSECURE_HOST", "timeout": "UV_HTTP_TIMEOUT",
            "proxy": "ALL_PROXY", "cert": "SSL_CERT_FILE"}

REMEDY = ("The installation did not finish, for the reason above: the same command "
          "starts it again. Behind a proxy, HTTPS_PROXY names it; without a network, "
          "PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER take the packages from a folder.")


def main(environment):
  """Installs into the folder of this name, unless it is complete."""
  folder = pathlib.Path(os.path.abspath(environment))
  folder.parent.mkdir(parents=True, exist_ok=True)
  with _turn(folder) as lock:
    if not _is_complete(folder, lock):
      _check(folder, lock)
      with _uv(folder) as uv:
        _install(folder, lock, uv)


@contextlib.contextmanager
def _turn(folder):
  """Waits for other calls, and for what a killed one has started; gives the lock."""
  with open(f"{folder}.lock", "a+", encoding="utf-8") as lock:
    os.set_inheritable(lock.fileno(), True)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      print(f"Another make installs into {folder}: waiting for it.", flush=True)
      fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock


def _is_complete(folder, lock):
  """Whether all of it was installed, later than the last change of its inputs."""
  stamp, version = folder / ".installed", _version(folder / "bin" / "python")
  named = os.environ.get("PYTHON")
  return (stamp.exists() and version in LOCK_FILES and not _is_half_made(folder, lock)
          and (not named or version in (named, _version(named)))
          and all(path.stat().st_mtime <= stamp.stat().st_mtime for path in [
              ROOT / "setup.py", ROOT / "pyproject.toml", LOCK_FILES[version]]))


def _is_half_made(folder, lock):
  lock.seek(0)
  return bool(lock.read()) or (folder / ".unfinished").exists()  # As it was before.


def _mark(lock, text):
  lock.truncate(0)
  lock.write(text)
  lock.flush()


def _check(folder, lock):
  """Refuses what was not to become an environment, and a disk that is too small."""
  found = folder.is_dir() and not any(folder.iterdir())
  if folder.exists() and not (found or (folder / "pyvenv.cfg").exists()
                              or _is_half_made(folder, lock)):
    sys.exit(f"{folder} is no environment, and is not empty: name another folder, as "
             "in make VENV=/path/of/venv.")
  free = shutil.disk_usage(folder.parent).free
  if free < NEEDED:
    sys.exit(f"There are {free / 1e9:.1f} GB free in {folder.parent}, and the "
             f"installation needs {NEEDED / 1e9:.0f}: make room, or name another "
             "folder, as in make VENV=/path/of/venv.")


@contextlib.contextmanager
def _uv(folder):
  """Gives uv: that of the path, the environment's own, or the locked one by pip."""
  for path in filter(None, (shutil.which("uv"), folder / "bin" / "uv")):
    if "--force" in _output(path, "venv", "--help"):  # The newest option used here.
      yield Uv(path, sys.executable)
      return
  with tempfile.TemporaryDirectory() as temporary:
    python = f"{temporary}/bin/python"
    _run([sys.executable, "-m", "venv", temporary])
    locked = [entry for entry in re.split(r"\n(?=\S)", NEW.read_text())
              if entry.startswith("uv==")]
    _run([python, "-I", "-m", "pip", "install", "-qq", "--disable-pip-version-check",
          "--require-hashes", "--requirement", "/dev/stdin"], text="".join(locked))
    yield Uv(f"{temporary}/bin/uv", python)


class Uv:
  """Calls uv with the settings that the user has made for pip.

  Attributes:
    environment: variables of its processes; pyenv's Pythons come first in their PATH,
      before its links, of which some lead nowhere.
  """

  def __init__(self, path, python):
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    self.path = str(path)
    self.environment = {**os.environ, "PATH": os.pathsep.join(
        [*sorted(glob.glob(f"{pyenv}/versions/3.*/bin")), os.environ.get("PATH", "")])}
    settings = _settings_of_pip(python)
    for name in set(SETTINGS) & set(settings):
      separator = "," if name == "find-links" else " "
      self.environment.setdefault(
          SETTINGS[name], separator.join(settings[name].split()))
    # As pip does: the locked version may be in any of the indexes.
    self.environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    self.offline = ["--no-index"] if "no-index" in settings else []

  def __call__(self, *words, **more):
    _run([self.path, *words], env=self.environment, **more)

  def find(self, python):
    """The path of a Python, given by its version, name or path; else nothing."""
    return _output(self.path, "python", "find", "--system", "--no-python-downloads",
                   python, env=self.environment)

  def install(self, python, *words):
    """Installs packages, with bars of progress where someone looks."""
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    self("pip", "install", "--python", str(python), "--compile-bytecode", *quiet,
         *self.offline, *words)


def _settings_of_pip(python):
  """What pip's files and variables, as PIP_NO_INDEX, say; the variables come first."""
  listed = re.findall(r"^(?:global|install)\.([\w-]+)=(['\"].*)$",
                      _output(python, "-I", "-m", "pip", "config", "list"), re.M)
  named = {name: os.environ.get("PIP_" + name.upper().replace("-", "_"))
           for name in [*SETTINGS, "no-index"]}
  found = {name: ast.literal_eval(value) for name, value in listed} | {
      name: value for name, value in named.items() if value is not None}
  return {name: value for name, value in found.items()
          if value.lower() not in ("", "0", "false", "no", "off")}


def _install(folder, lock, uv):
  """Makes or renews the environment."""
  python = _choose_python(folder, uv)
  version = _version(python)
  if not folder.exists() or not any(folder.iterdir()):
    _mark(lock, "unfinished")
    uv("venv", "--quiet", "--python", python, str(folder))
  elif _is_half_made(folder, lock) or _version(folder / "bin" / "python") != version:
    print(f"{folder} is of another Python, or of an installation that was "
          "interrupted: it is made anew.", flush=True)
    _mark(lock, "unfinished")
    uv("venv", "--quiet", "--clear", "--force", "--python", python, str(folder))
  print(f"Installing into {folder}: 3 GB, a minute or a few.", flush=True)
  before = _changed_at(folder)
  _mark(lock, "unfinished")
  (folder / ".installed").unlink(missing_ok=True)
  try:
    _install_packages(folder / "bin" / "python", version, uv)
  except SystemExit:
    if _changed_at(folder) == before:  # As without a network.
      _mark(lock, "")
    raise
  (folder / ".installed").touch()
  _mark(lock, "")


def _changed_at(folder):
  """When a package was last added or removed."""
  return [path.stat().st_mtime_ns for path in folder.glob("lib/python*/site-packages")]


def _choose_python(folder, uv):
  """The Python that is named, that the environment has, or the first that there is."""
  named = os.environ.get("PYTHON")
  versions = os.environ.get("PYTHONS", " ".join(LOCK_FILES)).split()
  own = _version(folder / "bin" / "python")
  wanted = [named] if named else [own] * (own in versions) + versions
  found = [uv.find(name) for name in wanted]
  for python in found:
    if _version(python) in LOCK_FILES:
      return python
  if named:
    release = _version(found[0])
    what = f"is Python {release}" if release else "is missing, or is no CPython"
    sys.exit("synthesizer_mtf needs a CPython from 3.10 to 3.13, because its "
             f"TensorFlow has wheels for no other, but {named} {what}: name another, "
             "as in make PYTHON=python3.12.")
  none = (f"There is no Python {', '.join(versions)} on the path or in pyenv, and "
          "TensorFlow has wheels for no other")
  print(f"{none}: uv downloads Python {versions[0]}.", flush=True)
  uv("python", "install", versions[0], remedy=f"{none}, and uv could not download one, "
     "for the reason above: type 'apt install python3-venv' on Debian 12, 13 or Ubuntu "
     "24.04, 'brew install python@3.13' on macOS.")
  return uv.find(versions[0])


def _install_packages(python, version, uv):
  """Installs what is locked, then this repository; outside Linux nothing is locked."""
  stand_in = STAND_INS.get(version, [])
  if sys.platform == "linux":
    lock_file = str(LOCK_FILES[version])
    options = "--no-deps", "--build-constraints", lock_file
    uv.install(python, *options, "--require-hashes", "--requirement", lock_file)
    uv.install(python, *options, "--editable", str(ROOT), *stand_in)
  else:
    uv.install(python, "--editable", f"{ROOT}[test]", *stand_in)
  uv("pip", "check", "--quiet", "--python", str(python))


def _version(python):
  """The version of a CPython, as in 3.11; nothing where it does not run."""
  return python and _output(python, "-c", ASK)


def _output(*command, env=None):
  """What a command prints; nothing where it fails."""
  try:
    ran = subprocess.run(list(map(str, command)), text=True, check=False, env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  except OSError:
    return ""
  return "" if ran.returncode else ran.stdout.strip()


def _run(command, text=None, env=None, remedy=REMEDY):
  """Runs a command; its failure ends this program in one sentence, the remedy.

  The command keeps the lock, if it lives longer than this program.
  """
  if subprocess.run(command, input=text, text=True, check=False, env=env,
                    close_fds=False).returncode:
    sys.exit(remedy)


if __name__ == "__main__":
  try:
    main(*sys.argv[1:])
  except OSError as error:
    sys.exit(f"The installation did not finish: {error}.")
  except KeyboardInterrupt:
    sys.exit("The installation was interrupted: the same command makes it anew.")
