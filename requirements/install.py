"""Makes an environment from the lock file of its Python, with uv.

    sh requirements/install.sh .venv

`make install` calls this script. PYTHON names the Python: 3.11, python3.11 or a path.
Without PYTHON, an environment keeps its Python. A new environment gets the first
supported Python on the path, or else in pyenv. If neither has one, uv downloads one.

An environment is complete once it holds the file `.installed`, which is written last.
uv does not notice packages that it left half installed when it was killed. Therefore
the next call makes an environment anew if `.venv.lock` says "unfinished". Simultaneous
calls take turns.
"""

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
LOCK_FILES = {"3.10": OLD, "3.11": OLD, "3.12": NEW, "3.13": NEW}
# `editdistance` has no wheel for these Pythons.
STAND_INS = {"3.13": [str(ROOT / "requirements" / "editdistance")]}
SUPPORTED = ">=3.10,<3.14"
NEEDED = 6e9  # Bytes, for the installed files and for temporary ones.

# Prints the version, such as 3.11. It prints nothing on PyPy and on a Python without
# the global interpreter lock, because TensorFlow has no wheels for them.
ASK = """
import sys, sysconfig
if sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"):
  print("%d.%d" % sys.version_info[:2])
"""

# pip's settings, and the environment variables of uv for the same settings.
SETTINGS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
            "find-links": "UV_FIND_LINKS", "no-cache-dir": "UV_NO_CACHE",
            "proxy": "ALL_PROXY", "cert": "SSL_CERT_FILE", "no-index": "NO_INDEX",
            "trusted-host": "UV_INSECURE_HOST", "timeout": "UV_HTTP_TIMEOUT"}
ASK_PIP = "from pip._internal.models import index; print(index.PyPI.simple_url)"

REMEDY = ("The installation did not finish, for the reason above: the same command "
          "starts it again. Behind a proxy, HTTPS_PROXY names it; without a network, "
          "PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER take the packages from a folder.")


def main(environment, extra=None):
  """Installs into the folder `environment`, unless it is complete.

  `extra` is "docs" if the packages of `make docs` are needed, too.
  """
  folder = pathlib.Path(os.path.abspath(environment))
  folder.parent.mkdir(parents=True, exist_ok=True)
  with _turn(folder) as lock:
    if not _is_complete(folder, lock):
      _check(folder, lock)
      with _uv() as uv:
        _install(folder, lock, uv)
    if extra:
      with _uv() as uv:
        _add(folder / "bin" / "python", extra, uv)


@contextlib.contextmanager
def _turn(folder):
  """Waits for other calls and for children of killed calls; yields the lock file."""
  with open(f"{folder}.lock", "a+", encoding="utf-8") as lock:
    os.set_inheritable(lock.fileno(), True)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      print(f"Another make installs into {folder}: waiting for it.", flush=True)
      fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock


def _is_complete(folder, lock):
  """Whether the environment is complete, newer than its inputs, and of PYTHON."""
  stamp, version = folder / ".installed", _version(folder / "bin" / "python")
  named = os.environ.get("PYTHON")
  return (stamp.exists() and version in LOCK_FILES and not _is_half_made(folder, lock)
          and (not named or version in (named, _version(named)))
          and all(path.stat().st_mtime <= stamp.stat().st_mtime for path in [
              ROOT / "setup.py", ROOT / "pyproject.toml", LOCK_FILES[version]]))


def _is_half_made(folder, lock):
  lock.seek(0)
  # Earlier versions of this script wrote the file `.unfinished`.
  return bool(lock.read()) or (folder / ".unfinished").exists()


def _mark(lock, text):
  lock.truncate(0)
  lock.write(text)
  lock.flush()


def _check(folder, lock):
  """Exits if the folder holds something else, or if the disk is too small."""
  if os.path.lexists(folder) and not (
      folder.is_dir() and not any(folder.iterdir())
      or (folder / "pyvenv.cfg").exists() or _is_half_made(folder, lock)):
    sys.exit(f"{folder} is no environment, and is not empty: name another folder, as "
             "in make VENV=/path/of/venv.")
  free = shutil.disk_usage(folder.parent).free
  if free < NEEDED:
    sys.exit(f"There are {free / 1e9:.1f} GB free in {folder.parent}, and the "
             f"installation needs {NEEDED / 1e9:.0f}: make room, or name another "
             "folder, as in make VENV=/path/of/venv.")


@contextlib.contextmanager
def _uv():
  """Yields uv: the one on the path, or the locked version, which pip fetches."""
  path = shutil.which("uv")
  if path and "--force" in _output(path, "venv", "--help"):  # The newest option here.
    yield Uv(path, sys.executable)
    return
  with tempfile.TemporaryDirectory() as temporary:
    python = f"{temporary}/bin/python"
    _run([sys.executable, "-m", "venv", temporary])
    locked = re.search(r"^uv==.*\n(?: +.*\n)+", NEW.read_text(), re.M).group()
    _run([python, "-I", "-m", "pip", "install", "-qq", "--disable-pip-version-check",
          "--require-hashes", "--requirement", "/dev/stdin"], text=locked)
    yield Uv(f"{temporary}/bin/uv", python)


class Uv:
  """Calls uv with the user's settings for pip."""

  def __init__(self, path, python):
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    self.path = path
    # pyenv's shims may not lead to any Python.
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep)
               if folder != f"{pyenv}/shims"]
    folders += sorted(glob.glob(f"{pyenv}/versions/3.*/bin"), reverse=True)
    self.environment = {**os.environ, "PATH": os.pathsep.join(folders)}
    listed = re.findall(r"^(global|install|:env:)\.([\w-]+)='(.*)'$",
                        _output(python, "-I", "-m", "pip", "config", "list"), re.M)
    for _, name, value in sorted(listed, reverse=True, key=lambda x: x[0] == ":env:"):
      if name in SETTINGS and value.lower() not in ("", "0", "false", "no", "off"):
        separator = "," if name == "find-links" else " "
        self.environment.setdefault(
            SETTINGS[name], separator.join(value.replace("\\n", " ").split()))
    # Like pip, uv looks for the locked version in all indexes.
    self.environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    if "UV_INDEX" in self.environment and "UV_INDEX" not in os.environ:
      # The main index comes first, because uv takes a version from the first index that
      # has it. Another index may hold its own build, without the locked hash.
      main_index = (self.environment.get("UV_DEFAULT_INDEX")
                    or _output(python, "-I", "-c", ASK_PIP))
      *indexes, last = [main_index, *self.environment["UV_INDEX"].split()]
      self.environment |= {"UV_INDEX": " ".join(indexes), "UV_DEFAULT_INDEX": last}

  def __call__(self, *words, **more):
    _run([self.path, *words], env=self.environment, **more)

  def find(self, python):
    """Returns the path of a Python on this machine, or "" if none fits."""
    return _output(self.path, "python", "find", "--system", "--no-python-downloads",
                   python, env=self.environment)

  def install(self, python, *words):
    """Installs packages, with progress bars on a terminal."""
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    offline = ["--no-index"] if "NO_INDEX" in self.environment else []
    self("pip", "install", "--python", python, "--compile-bytecode", *quiet, *offline,
         *words)


def _install(folder, lock, uv):
  """Makes or renews the environment."""
  python = _choose_python(folder, uv)
  version, own = _version(python), folder / "bin" / "python"
  is_new = not folder.exists() or not any(folder.iterdir())
  if is_new or _is_half_made(folder, lock) or _version(own) != version:
    if not is_new:
      print(f"{folder} is of another Python, or of an installation that was "
            "interrupted: it is made anew.", flush=True)
    _mark(lock, "unfinished")
    uv("venv", "--quiet", "--clear", "--force", "--python", python, str(folder))
  print(f"Installing into {folder}: 3 GB, a minute or a few.", flush=True)
  packages, ours = _packages(version)
  uv.install(str(own), *packages, "--dry-run")  # Fails before any change.
  _mark(lock, "unfinished")
  (folder / ".installed").unlink(missing_ok=True)
  uv.install(str(own), *packages)
  uv.install(str(own), *ours)
  # t5 needs tfds-nightly, an older version of the same files, and the package that uv
  # writes last wins.
  uv.install(str(own), *(packages if sys.platform == "linux" else ours),
             "--reinstall-package", "tensorflow-datasets")
  uv("pip", "check", "--quiet", "--python", str(own))
  (folder / ".installed").touch()
  _mark(lock, "")


def _add(python, extra, uv):
  """Adds the packages of an extra that has lock files of its own."""
  lock_file = LOCK_FILES[_version(python)]
  uv.install(str(python), *(
      ["--no-deps", "--require-hashes", "--requirement",
       str(lock_file.with_name(f"{extra}-{lock_file.name}"))]
      if sys.platform == "linux" else ["--editable", f"{ROOT}[{extra}]"]))


def _packages(version):
  """Returns uv's arguments for its first and its second installation.

  Outside Linux no versions are locked.
  """
  ours = ["--editable", str(ROOT), *STAND_INS.get(version, [])]
  if sys.platform != "linux":
    return ["setuptools<81"], [f"{word}[test]" if word == str(ROOT) else word
                               for word in ours]
  lock_file = str(LOCK_FILES[version])
  options = ["--no-deps", "--build-constraints", lock_file]
  return [*options, "--require-hashes", "--requirement", lock_file], [*options, *ours]


def _choose_python(folder, uv):
  """Returns the named Python, the environment's Python, or the first that fits."""
  named, own = os.environ.get("PYTHON"), _version(folder / "bin" / "python")
  python = uv.find(named or (own if own in LOCK_FILES else SUPPORTED))
  version = _version(python)
  if version in LOCK_FILES:
    return python
  needs = ("synthesizer_mtf needs a CPython from 3.10 to 3.13, because its TensorFlow "
           "has wheels for no other")
  if named:
    sys.exit(f"{needs}, but {named} is " + (
        f"Python {version}" if version else "missing, or is no CPython") +
             ": name another, as in make PYTHON=python3.12.")
  print(f"{needs}, and there is none on the path or in pyenv: uv downloads one.",
        flush=True)
  uv("python", "install", SUPPORTED, remedy=f"{needs}, and uv could not download one: "
     "type 'apt install python3-venv' on Debian 12, 13 or Ubuntu 24.04, 'brew install "
     "python@3.13' on macOS.")
  return uv.find(SUPPORTED)


def _version(python):
  """Returns the version of a CPython, such as 3.11, or "" if it does not run."""
  return python and _output(python, "-c", ASK)


def _output(*command, env=None):
  """Returns the output of a command, or "" if the command fails."""
  try:
    ran = subprocess.run(list(map(str, command)), text=True, check=False, env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  except OSError:
    return ""
  return "" if ran.returncode else ran.stdout.strip()


def _run(command, text=None, env=None, remedy=REMEDY):
  """Runs a command; if it fails, ends this program with the remedy as the message.

  If this program is killed, the command keeps the lock until it ends.
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
