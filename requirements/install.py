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
FOLDER = ROOT / "requirements"
OLD, NEW = FOLDER / "python3.10-3.11.txt", FOLDER / "python3.12-3.13.txt"
LOCK_FILES = {"3.13": NEW, "3.12": NEW, "3.11": OLD, "3.10": OLD}
STAND_IN = FOLDER / "editdistance"
WITHOUT_EDITDISTANCE = "3.13"  # Its wheels end with 3.12.
NEEDED = 6e9  # Bytes: what is installed, and what is unpacked on the way.
UNFINISHED = "unfinished"

# Prints the version, as in 3.11. TensorFlow has no wheels for PyPy, nor for a Python
# without the lock of threads.
ASK = """
import sys, sysconfig
if (sys.implementation.name == "cpython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")):
  print("%d.%d" % sys.version_info[:2])
"""

# pip's settings, and the variables in which uv expects them.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "NO_INDEX",  # An option of uv's commands, and no variable.
    "no-cache-dir": "UV_NO_CACHE",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}


def main(environment):
  """Installs into the folder of this name, unless it is complete."""
  folder = pathlib.Path(os.path.abspath(environment))
  folder.parent.mkdir(parents=True, exist_ok=True)
  with _turn(folder) as lock:
    if not _is_complete(folder, lock):
      _check_kind(folder, lock)
      _check_space(folder.parent)
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
  stamp = folder / ".installed"
  version = _version(folder / "bin" / "python")
  return (stamp.exists() and version in LOCK_FILES and not _is_half_made(folder, lock)
          and _named_version() in (None, version)
          and all(path.stat().st_mtime <= stamp.stat().st_mtime for path in [
              ROOT / "setup.py", ROOT / "pyproject.toml", LOCK_FILES[version]]))


def _is_half_made(folder, lock):
  lock.seek(0)
  # The file is that of earlier versions of this script.
  return lock.read() == UNFINISHED or (folder / ".unfinished").exists()


def _mark(lock, text):
  lock.truncate(0)
  lock.write(text)
  lock.flush()


def _version(python):
  """The version of a CPython, as in 3.11; nothing where it does not run."""
  try:
    ran = subprocess.run([str(python), "-c", ASK], text=True, check=False,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  except OSError:
    return ""
  return ran.stdout.strip() if ran.returncode == 0 else ""


def _named_version():
  """The version of the Python that PYTHON names, or None where it names none."""
  named = os.environ.get("PYTHON")
  if not named:
    return None
  release = re.fullmatch(r"(3\.\d+)(\.\d+)?", named)
  return release.group(1) if release else _version(named)


def _check_kind(folder, lock):
  """Refuses what is neither an environment nor was to become one."""
  if folder.exists() and not folder.is_dir():
    sys.exit(f"{folder} is no folder: name another, as in make VENV=/path/of/venv.")
  names = os.listdir(folder) if folder.exists() else []
  if names and "pyvenv.cfg" not in names and not _is_half_made(folder, lock):
    sys.exit(f"{folder} is no environment, and is not empty: name another "
             "folder, as in make VENV=/path/of/venv.")


def _check_space(folder):
  free = shutil.disk_usage(folder).free
  if free < NEEDED:
    sys.exit(f"There are {free / 1e9:.1f} GB free in {folder}, and the "
             f"installation needs {NEEDED / 1e9:.0f}: make room, or name another "
             "folder, as in make VENV=/path/of/venv.")


@contextlib.contextmanager
def _uv(folder):
  """Gives a function that runs uv: that of the path, the environment's, or a new one."""
  for uv in (shutil.which("uv"), folder / "bin" / "uv"):
    if uv and _can_all(uv):
      yield _Uv(uv, sys.executable)
      return
  with tempfile.TemporaryDirectory() as temporary:
    python = f"{temporary}/bin/python"
    _run([sys.executable, "-m", "venv", temporary])
    _run([python, "-I", "-m", "pip", "install", "-qq", "--disable-pip-version-check",
          "--require-hashes", "--requirement", "/dev/stdin"], text=_locked("uv"))
    yield _Uv(f"{temporary}/bin/uv", python)


def _can_all(uv):
  """Whether this uv has the newest of the options that are used here."""
  try:
    ran = subprocess.run([str(uv), "pip", "install", "--help"], text=True, check=False,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  except OSError:
    return False
  return "--require-build-hashes" in ran.stdout


def _locked(name):
  """The entry of a package in the newer lock file, with its hashes."""
  entries = re.split(r"\n(?=\S)", NEW.read_text())
  return "".join(entry for entry in entries if entry.split("==")[0] == name)


class _Uv:
  """Runs uv with the settings of pip that the user has, and sees pyenv's Pythons."""

  def __init__(self, path, python):
    self.path = str(path)
    self.environment = {**os.environ, "PATH": os.pathsep.join(
        [*_pyenv(), os.environ.get("PATH", "")])}
    for name, value in {**_pip_settings(python), **_pip_variables()}.items():
      separator = "," if name == "find-links" else " "
      self.environment.setdefault(SETTINGS[name], separator.join(value.split()))
    # As pip does: the locked version may be in any of the indexes.
    self.environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    self.offline = self.environment.pop("NO_INDEX", None)

  def pip_install(self, python, *words):
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    offline = ["--no-index"] if self.offline else []
    self("pip", "install", "--python", str(python), *quiet, *offline, *words)

  def find(self, python):
    """The path of a Python, given by its version, name or path, or nothing."""
    ran = subprocess.run(
        [self.path, "python", "find", "--system", "--no-python-downloads", python],
        env=self.environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return ran.stdout.strip() if ran.returncode == 0 else ""

  def __call__(self, *words):
    _run([self.path, *words], env=self.environment)


def _pyenv():
  """Folders of pyenv's Pythons: before its links, of which some lead nowhere."""
  root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
  return sorted(glob.glob(f"{root}/versions/3.*/bin"), reverse=True)


def _pip_settings(python):
  """What pip's files say, by the names of SETTINGS."""
  ran = subprocess.run([python, "-I", "-m", "pip", "config", "list"], text=True,
                       check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  found = re.findall(r"^(?:global|install)\.([\w-]+)=('.*'|\".*\")$", ran.stdout, re.M)
  return {name: ast.literal_eval(value) for name, value in found if name in SETTINGS
          and not _is_off(ast.literal_eval(value))}


def _pip_variables():
  """What pip's variables say, as PIP_NO_INDEX, by the names of SETTINGS."""
  found = {name: os.environ.get("PIP_" + name.upper().replace("-", "_"), "")
           for name in SETTINGS}
  return {name: value for name, value in found.items() if not _is_off(value)}


def _is_off(value):
  return value.lower() in ("", "0", "false", "no", "off")


def _install(folder, lock, uv):
  """Makes or renews the environment."""
  python = _choose_python(folder, uv)
  version = _version(python) or python
  if folder.exists() and any(folder.iterdir()) and (
      _is_half_made(folder, lock) or _version(folder / "bin" / "python") != version):
    print(f"{folder} is of another Python, or of an installation that was "
          "interrupted: it is made anew.", flush=True)
    _mark(lock, UNFINISHED)
    uv("venv", "--quiet", "--clear", "--force", "--python", python, str(folder))
  elif not (folder / "pyvenv.cfg").exists():
    _mark(lock, UNFINISHED)
    uv("venv", "--quiet", "--allow-existing", "--python", python, str(folder))
  print(f"Installing into {folder}: 3 GB, a minute or a few.", flush=True)
  before = _changed_at(folder)
  _mark(lock, UNFINISHED)
  (folder / ".installed").unlink(missing_ok=True)
  try:
    _install_packages(folder / "bin" / "python", version, uv)
  except SystemExit:
    if _changed_at(folder) == before:  # As without a network.
      _mark(lock, "")
    raise
  (folder / ".installed").touch()
  _mark(lock, "")


def _choose_python(folder, uv):
  """The Python that is named, that the environment has, or the first that there is."""
  named = os.environ.get("PYTHON")
  if named:
    version = _version(uv.find(named))
    if not version:
      sys.exit(f"There is no {named}, or it is no CPython that runs: name a Python "
               "3.10 to 3.13, as in make PYTHON=/path/of/python3.12.")
    if version not in LOCK_FILES:
      sys.exit("synthesizer_mtf needs Python 3.10 to 3.13, because its TensorFlow has "
               f"wheels for no other, but {named} is Python {version}: name one of "
               "those, as in make PYTHON=python3.12.")
    return uv.find(named)
  versions = os.environ.get("PYTHONS", " ".join(LOCK_FILES)).split()
  own = _version(folder / "bin" / "python")
  for version in [own] * (own in versions) + versions:
    python = uv.find(version)
    if _version(python) == version:
      return python
  print(f"There is no Python {', '.join(versions)} on the path or in pyenv, and "
        f"TensorFlow has wheels for no other: uv downloads Python {versions[0]}.",
        flush=True)
  return versions[0]


def _changed_at(folder):
  """When a package was last added or removed."""
  return [path.stat().st_mtime_ns for path in folder.glob("lib/python*/site-packages")]


def _install_packages(python, version, uv):
  """Installs what is locked, then this repository; outside Linux nothing is locked."""
  stand_in = [str(STAND_IN)] if version == WITHOUT_EDITDISTANCE else []
  if sys.platform == "linux":
    lock_file = str(LOCK_FILES[version])
    build = "--build-constraints", lock_file, "--require-build-hashes"
    uv.pip_install(python, "--no-deps", "--require-hashes", *build,
                   "--requirement", lock_file)
    uv.pip_install(python, *build, "--no-deps", "--editable", str(ROOT), *stand_in)
  else:
    uv.pip_install(python, "--editable", f"{ROOT}[test]", *stand_in)
  uv("pip", "check", "--quiet", "--python", str(python))


def _run(command, text=None, env=None):
  """Runs a command; its failure ends this program in one sentence.

  The command keeps the lock, if it lives longer than this program.
  """
  status = subprocess.run(command, input=text, text=True, check=False, env=env,
                          close_fds=False).returncode
  if status:
    sys.exit("The installation did not finish, for the reason above: the same "
             "command starts it again. Behind a proxy, HTTPS_PROXY names it; without "
             "a network, PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER take the packages "
             "from a folder.")


if __name__ == "__main__":
  try:
    main(*sys.argv[1:])
  except OSError as error:
    sys.exit(f"The installation did not finish: {error}.")
  except KeyboardInterrupt:
    sys.exit("The installation was interrupted: the same command makes it anew.")
