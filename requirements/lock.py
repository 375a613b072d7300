"""Rewrites the lock files, with the newest versions that pyproject.toml allows.

    make lock

The packages of `make docs` are in lock files of their own, beside those of `make test`.

Each entry has the hashes of the files that Linux can install. A comment below it names
the Pythons that have a wheel of the package. For a package without a wheel, the source
distribution is locked, and `BUILT` says why it builds without a compiler. Other files
cannot be installed, because their hashes are missing.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

from packaging import markers
from packaging import tags
from packaging import utils

FOLDER = pathlib.Path(__file__).resolve().parent

# Each lock file, its Pythons, and the machines that all of its packages support.
LOCK_FILES = {
    "python3.10-3.11.txt": (["3.10", "3.11"], ["x86_64"]),
    "python3.12-3.13.txt": (["3.12", "3.13"], ["x86_64", "aarch64"]),
}

BUILT = {
    "crcmod": "Its C extension is optional: the same functions are there in Python.",
    "dill": "Python only, built by setuptools.",
    "docopt": "Python only, built by setuptools.",
    "hdfs": "Python only, built by setuptools.",
    "promise": "Python only, built by setuptools.",
    "rouge-score": "Python only, built by setuptools.",
}

PROJECT = """[tool.uv]
environments = {environments}
# editdistance has no wheel for 3.13: requirements/editdistance replaces it.
override-dependencies = ["editdistance; python_version < '3.13'"]
"""


def main():
  for name, places in LOCK_FILES.items():
    packages = resolve("test", *places, constraints="")
    write(name, packages, *places)
    names = {package["name"] for package in packages}
    more = resolve("docs", *places, constraints="".join(
        f"{package['name']}=={package['version']}"
        f"{' ; ' + package['marker'] if 'marker' in package else ''}\n"
        for package in packages))
    write(f"docs-{name}", [p for p in more if p["name"] not in names], *places)


def write(name, packages, pythons, machines):
  """Writes a lock file, without the packages that only later micro versions need."""
  packages = [package for package in packages
              if any(is_wanted(package, *place)
                     for place in itertools.product(pythons, machines))]
  (FOLDER / name).write_text(
      "".join(entry(package, pythons, machines) for package in packages))
  print(f"requirements/{name}: {len(packages)} packages.")


def resolve(extra, pythons, machines, constraints):
  """Resolves the packages of an extra by uv; returns tables of a `pylock.toml`.

  Earlier lock files have no influence.
  """
  environments = [
      f"python_version == '{python}' and platform_machine == '{machine}' and "
      "sys_platform == 'linux' and platform_python_implementation == 'CPython'"
      for python, machine in itertools.product(pythons, machines)]
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "pyproject.toml").write_text(PROJECT.format(environments=environments))
    (folder / "installer.in").write_text("pip>=23.2\nwheel\n")
    (folder / "constraints.txt").write_text(constraints)
    subprocess.run(
        [pathlib.Path(sys.executable).parent / "uv", "pip", "compile",
         FOLDER.parent / "pyproject.toml", "installer.in", "--extra", extra,
         "--constraints", "constraints.txt", "--universal",
         "--python-version", pythons[0], "--quiet", "--output-file", "pylock.toml"],
        cwd=folder, check=True, stdout=subprocess.DEVNULL)
    import tomllib  # Python 3.10 lacks it.
    return tomllib.loads((folder / "pylock.toml").read_text())["packages"]


def entry(package, pythons, machines):
  """Returns the lines of one package for a lock file."""
  name, wheels = package["name"], package.get("wheels", [])
  wanted = [python for python in pythons
            if any(is_wanted(package, python, machine) for machine in machines)]
  places = list(itertools.product(wanted, machines))
  fitting = {place: {wheel["hashes"]["sha256"] for wheel in wheels
                     if is_installable(wheel, *place)} for place in places}
  files = set().union(*fitting.values())
  note = "wheels: " + ", ".join(wanted)
  if not all(fitting.values()):
    if name not in BUILT:
      sys.exit(f"{name} {package['version']} has no wheel for one of {places}: pin "
               "another version in pyproject.toml, or write in requirements/lock.py "
               "why it builds without a compiler.")
    files.add(package["sdist"]["hashes"]["sha256"])
    note = f"built: {BUILT[name]}"
  return " \\\n    ".join([
      f"{name}=={package['version']}{marker(wanted, pythons)}",
      *(f"--hash=sha256:{digest}" for digest in sorted(files))]) + f"\n    # {note}\n"


def is_wanted(package, python, machine):
  return markers.Marker(package.get("marker", "python_version > '3'")).evaluate({
      "python_version": python, "python_full_version": f"{python}.0",
      "platform_machine": machine, "platform_system": "Linux",
      "sys_platform": "linux", "platform_python_implementation": "CPython"})


def is_installable(wheel, python, machine):
  """Whether this Python can install the wheel, on any Linux since 2020."""
  version = tuple(map(int, python.split(".")))
  platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 32)] + [
      f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1")]
  _, _, _, offered = utils.parse_wheel_filename(wheel["url"].rpartition("/")[2])
  return not offered.isdisjoint([
      *tags.cpython_tags(version, platforms=platforms),
      *tags.compatible_tags(version, platforms=platforms)])


def marker(wanted, pythons):
  """Returns the marker of a package that only some Pythons of the file need, or ""."""
  if wanted == pythons:
    return ""
  return " ; " + " or ".join(f"python_version == '{python}'" for python in wanted)


if __name__ == "__main__":
  main()
