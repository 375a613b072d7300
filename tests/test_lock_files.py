"""The packages of a lock file install without a compiler on each of its Pythons."""

import re

import pytest
from support import scripts
from support.paths import ROOT

FILES = {"python3.10-3.11.txt": ["3.10", "3.11"],
         "python3.12-3.13.txt": ["3.12", "3.13"]}


@pytest.fixture
def lock():
  """The script that writes the lock files."""
  return scripts.load("lock")


def entries(name):
  """The lines of a lock file: one string for each package."""
  return re.findall(r"^\S.*\n(?: +.*\n)+", (ROOT / "requirements" / name).read_text(),
                    re.M)


@pytest.mark.parametrize("name", FILES)
def test_each_package_is_a_wheel_or_builds_without_a_compiler(lock, name):
  assert len(entries(name)) > 100
  for entry in entries(name):
    package = entry.partition("==")[0]
    pythons = re.findall(r"python_version == '([\d.]+)'", entry) or FILES[name]
    hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}", entry)
    note = entry.splitlines()[-1].strip()
    if note.startswith("# built: "):
      assert note == f"# built: {lock.BUILT[package]}" and len(hashes) == 1, entry
    else:
      assert note == "# wheels: " + ", ".join(pythons) and hashes, entry
  text = (ROOT / "requirements" / name).read_text()
  assert "".join(entries(name)) == text


def test_every_package_on_the_list_of_built_ones_is_locked(lock):
  locked = {entry.partition("==")[0] for name in FILES for entry in entries(name)}
  assert set(lock.BUILT) <= locked


def package(name, *wheels, **more):
  return {"name": name, "version": "1.0", "sdist": {"hashes": {"sha256": "s" * 3}},
          "wheels": [{"url": f"https://host/{name}-1.0-{tag}.whl", "hashes": {
              "sha256": f"{number}" * 3}} for number, tag in enumerate(wheels)], **more}


NEW = ["3.12", "3.13"], ["x86_64", "aarch64"]


def test_only_files_that_linux_can_install_are_locked(lock):
  text = lock.entry(package(
      "a", "cp312-abi3-manylinux_2_17_x86_64", "cp312-cp312-win_amd64",
      "cp311-cp311-manylinux_2_17_x86_64", "cp312-cp312-musllinux_1_1_x86_64",
      "cp312-cp312-manylinux_2_28_aarch64", "cp313-cp313-manylinux_2_28_aarch64"), *NEW)
  assert text == ("a==1.0 \\\n    --hash=sha256:000 \\\n    --hash=sha256:444 \\\n"
                   "    --hash=sha256:555\n    # wheels: 3.12, 3.13\n")


def test_a_package_without_a_wheel_for_one_python_is_refused(lock):
  for tags in ([], ["cp312-abi3-manylinux2014_x86_64"],
               [f"cp312-cp312-manylinux2014_{m}" for m in ("x86_64", "aarch64")],
               ["cp313-cp313t-manylinux2014_x86_64"]):
    with pytest.raises(SystemExit, match="editdistance 1.0 has no wheel for one of"):
      lock.entry(package("editdistance", *tags), *NEW)


def test_a_package_needs_no_wheel_for_a_python_that_does_not_need_it(lock):
  text = lock.entry(package(
      "a", "cp312-cp312-manylinux2014_x86_64", "cp312-cp312-manylinux2014_aarch64",
      marker="python_full_version == '3.12.*' and sys_platform == 'linux'"), *NEW)
  assert text.startswith("a==1.0 ; python_version == '3.12' \\\n")
  assert text.endswith("# wheels: 3.12\n")


def test_a_package_on_the_list_is_built_from_its_source(lock):
  text = lock.entry(package("promise"), *NEW)
  assert text == ("promise==1.0 \\\n    --hash=sha256:sss\n    # built: "
                   f"{lock.BUILT['promise']}\n")
