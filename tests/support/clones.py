"""A clone that installs in a second, with one small package and the real uv.

Packages come from a folder of wheels, and the clone contains its build backend, so
nothing uses the network. A script logs each call of uv. A test may add a hook that runs
in these calls.
"""

import hashlib
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import time
import zipfile

from support.paths import ROOT
from support.processes import LIMIT

UV = pathlib.Path(sys.executable).parent / "uv"

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "NAME"
version = "1.0"
"""

# Stands for uv: logs its arguments, runs the test's hook, and runs the real uv.
LOGGED = """#!/bin/sh
echo "$UV_FIND_LINKS|$*" >> "$CLONE/log"
[ ! -e "$CLONE/hook" ] || . "$CLONE/hook"
exec "{uv}" "$@"
"""

# Runs a script after a statement, and makes the disk look large.
RUN = """
import os, pathlib, runpy, shutil, sys, types
shutil.disk_usage = lambda folder: types.SimpleNamespace(free=1e12)
script, statement, *words = sys.argv[1:]
exec(statement)
sys.argv = [script, *words]
runpy.run_path(script, run_name="__main__")
"""


def write_wheel(folder, name, version, files):
  """Writes a wheel of the files in a dict from paths to texts; returns its name."""
  info = f"{name}-{version}.dist-info"
  files = {**files, f"{info}/METADATA": (
      f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
           f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
                            "Root-Is-Purelib: true\nTag: py3-none-any\n"}
  record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
  path = pathlib.Path(folder) / f"{name}-{version}-py3-none-any.whl"
  with zipfile.ZipFile(path, "w") as wheel:
    for file, text in {**files, f"{info}/RECORD": record}.items():
      member = zipfile.ZipInfo(file, (2020, 1, 1, 0, 0, 0))
      member.external_attr = 0o100755 << 16
      wheel.writestr(member, text)
  return path.name


# Replaces setuptools, which the folder of wheels lacks.
BACKEND = f"""import pathlib, zipfile

{inspect.getsource(write_wheel)}

def build_wheel(folder, settings=None, metadata=None):
  return write_wheel(folder, "NAME", "1.0", {{}})

build_editable = build_wheel
"""


class Clone:
  """The inputs of an installation, and the environment that it makes."""

  def __init__(self, folder):
    self.folder = folder
    self.environment = folder / "made" / ".venv"
    self.wheels = folder / "wheels"
    self.requirements = folder / "clone" / "requirements"
    self.wheels.mkdir()
    self.requirements.mkdir(parents=True)
    for name in ("install.sh", "install.py"):
      shutil.copy(ROOT / "requirements" / name, self.requirements)
    self._write_project(folder / "clone", "ours")
    self._write_project(self.requirements / "editdistance", "editdistance")
    (folder / "clone" / "setup.py").touch()
    self.lock({"tiny": "1.0"})
    self.add("bin/uv", LOGGED.format(uv=UV))

  def _write_project(self, folder, name):
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT.replace("NAME", name))
    (folder / "backend.py").write_text(BACKEND.replace("NAME", name))

  def add(self, name, text):
    """Writes a program, replacing an existing file; returns its path."""
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # It may link to a real program.
    path.write_text(text)
    path.chmod(0o755)
    return path

  def lock(self, packages, wrong_hash=False, files=None):
    """Writes wheels, with the given files, and lock files with these wheels."""
    entries = []
    for name, version in packages.items():
      wheel = write_wheel(self.wheels, name, version, (files or {}).get(
          name, {f"{name}.py": ""}))
      digest = hashlib.sha256((self.wheels / wheel).read_bytes()).hexdigest()
      entries.append(f"{name}=={version} \\\n    --hash=sha256:"
                     f"{'0' * 64 if wrong_hash else digest}\n")
    for name in ("python3.10-3.11.txt", "python3.12-3.13.txt"):
      (self.requirements / name).write_text("".join(entries))

  def start(self, statement="", **environment):
    """Runs install.py after a statement in Python."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", RUN, str(self.requirements / "install.py"),
         statement, str(self.environment)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**self.variables(), **environment})

  def variables(self):
    """The environment variables without a network and without the user's settings."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_", "PYTHON", "MAKE", "VIRTUAL_"))}
    return {**kept, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "CLONE": str(self.folder), "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "UV_CACHE_DIR": str(self.folder / "cache")}

  def install(self, statement="", **environment):
    process = self.start(statement, **environment)
    out, err = process.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess([], process.returncode, out, err)

  def hook(self, do):
    """Sets the shell commands that run whenever uv installs packages."""
    self.add("hook", 'case "$*" in *--dry-run*) ;; "pip install --python"*)\n'
             f"{do} ;; esac\n")

  def calls(self, word=""):
    """The logged calls of uv that contain `word`, without calls for help."""
    log = self.folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if " --help" not in line and word in line]

  def has(self, name):
    return os.path.lexists(self.environment / name)

  def packages(self):
    """The names of the installed packages."""
    paths = self.environment.glob("lib/python*/site-packages/*.dist-info")
    return {path.name.partition("-")[0] for path in paths}

  def renew(self):
    """Makes the files in `requirements` newer than the installation."""
    for path in self.requirements.iterdir():
      os.utime(path, (time.time() + 5, time.time() + 5))
