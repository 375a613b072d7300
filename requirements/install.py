"""Makes an environment from the lock file of the Python that runs this.

    python requirements/install.py .venv

`make install` calls it. An environment is complete once it holds the file
`.installed`, which is written last. While it holds `.unfinished` it is half made,
and what finds it makes it anew. Two calls at once take turns. Only the standard
library is used, for there is nothing else yet.
"""

import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
INPUTS = [ROOT / "setup.py", ROOT / "pyproject.toml"]
OLD, NEW = (ROOT / "requirements" / name
            for name in ("python3.10-3.11.txt", "python3.12-3.13.txt"))
NEEDED = 6e9  # Bytes: what is installed, and what pip unpacks on the way.


def lock_file():
  """The lock file of this Python."""
  return NEW if sys.version_info >= (3, 12) else OLD


def is_complete(environment):
  """Whether all of it was installed, later than the last change of its inputs."""
  stamp = environment / ".installed"
  return (stamp.exists() and (environment / "bin" / "python").exists()
          and not (environment / ".unfinished").exists()
          and not is_of_another_python(environment)
          and all(path.stat().st_mtime <= stamp.stat().st_mtime
                  for path in [*INPUTS, lock_file()]))


def is_of_another_python(environment):
  """Whether it was made for another version than that of this Python."""
  try:
    lines = (environment / "pyvenv.cfg").read_text().splitlines()
  except OSError:
    return False
  versions = [line.partition("=")[2].split(".")[:2] for line in lines
              if line.startswith("version")]
  return versions != [[f" {sys.version_info[0]}", str(sys.version_info[1])]]


def install(environment):
  """Makes or renews the environment, a path."""
  _check_kind(environment)
  unfinished = environment / ".unfinished"
  if environment.exists() and _is_useless(environment):
    print(f"{environment} is of another Python, or of an installation that was "
          "interrupted: it is made anew.", flush=True)
    _empty(environment)
  if not any(environment.glob("lib/python*/site-packages/pip")):
    _make(environment)
  print(f"Installing into {environment}: 3 GB, about three minutes.", flush=True)
  unfinished.touch()
  (environment / ".installed").unlink(missing_ok=True)
  before = _changed_at(environment)
  try:
    _install_packages(str(environment / "bin" / "python"))
  except SystemExit:
    if _changed_at(environment) == before:  # As without a network.
      unfinished.unlink()
    raise
  unfinished.unlink()
  (environment / ".installed").touch()


def _check_kind(environment):
  """Refuses a folder that holds anything but an environment."""
  names = os.listdir(environment) if environment.exists() else []
  if names and not {"pyvenv.cfg", ".unfinished"} & set(names):
    sys.exit(f"{environment} is no environment, and is not empty: name another "
             "folder, as in make VENV=/path/of/venv.")


def _empty(environment):
  """Removes what is in it, so that it is half made until all is removed."""
  (environment / ".unfinished").touch()
  (environment / ".installed").unlink(missing_ok=True)
  for path in environment.iterdir():
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)
    elif path.name != ".unfinished":
      path.unlink()


def _is_useless(environment):
  """Whether it is half made, of another Python, or of one that is gone."""
  return ((environment / ".unfinished").exists()
          or is_of_another_python(environment)
          or not (environment / "bin" / "python").exists())


def _make(environment):
  """Makes an environment with pip and nothing else."""
  _check_space(environment.parent)
  environment.mkdir(exist_ok=True)
  (environment / ".unfinished").touch()
  _run(sys.executable, "-m", "venv", str(environment))


def _changed_at(environment):
  """When a package was last added or removed."""
  return [path.stat().st_mtime_ns
          for path in environment.glob("lib/python*/site-packages")]


def _check_space(folder):
  free = shutil.disk_usage(folder).free
  if free < NEEDED:
    sys.exit(f"There are {free / 1e9:.1f} GB free in {folder}, and the "
             f"installation needs {NEEDED / 1e9:.0f}: make room, or name another "
             "folder, as in make VENV=/path/of/venv.")


def _install_packages(python):
  """Installs what is locked, then this repository; outside Linux nothing is."""
  pip = (python, "-I", "-m", "pip", "install", "-qq", "--disable-pip-version-check",
         "--no-build-isolation")
  if sys.platform == "linux":
    # First a newer pip, for before 23.2 none can do with hashes what depends on an
    # extra, and what builds the few packages that have no wheel.
    _run(*pip, "--require-hashes", "--requirement", "/dev/stdin",
         text=_locked("pip", "setuptools", "wheel", "packaging"))
    _run(*pip, "--require-hashes", "--requirement", str(lock_file()))
  else:
    _run(*pip, "setuptools<81", "wheel")
  _run(*pip, "--editable", f"{ROOT}[test]")
  _run(python, "-I", "-m", "pip", "check")


def _locked(*names):
  """The entries of these packages in the lock file, with their hashes."""
  entries = re.split(r"\n(?=\S)", lock_file().read_text())
  return "\n".join(entry for entry in entries if entry.split("==")[0] in names)


def _run(*command, text=""):
  """Runs a command; its failure ends this program in one sentence.

  The command keeps the lock, if it lives longer than this program.
  """
  status = subprocess.run(command, input=text, text=True, check=False,
                          close_fds=False).returncode
  if status:
    sys.exit("The installation did not finish, for the reason above: the same "
             "command starts it again. Behind a proxy, HTTPS_PROXY names it; without "
             "a network, PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER take the packages "
             "from a folder.")


def main(environment):
  """Installs into the folder of this name, unless it is complete."""
  folder = pathlib.Path(os.path.abspath(environment))
  folder.parent.mkdir(parents=True, exist_ok=True)
  with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
    os.set_inheritable(lock.fileno(), True)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      print(f"Another make installs into {environment}: waiting for it.",
            flush=True)
      fcntl.flock(lock, fcntl.LOCK_EX)
    if not is_complete(folder):
      install(folder)


if __name__ == "__main__":
  try:
    main(*sys.argv[1:])
  except OSError as error:
    sys.exit(f"The installation did not finish: {error}.")
  except KeyboardInterrupt:
    sys.exit("The installation was interrupted: the same command makes it anew.")
