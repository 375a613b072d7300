"""Makes the files of a release in dist/, and checks them.

    make release

The version is `synthesizer_mtf.__version__`, and the date that of the changelog.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
UV = pathlib.Path(sys.executable).parent / "uv"
TWINE = "twine==7.0.0"


def main() -> None:
  version, date = newest((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
  named = re.search(r'^__version__ = "(.*)"$',
                    (ROOT / "synthesizer_mtf/__init__.py").read_text(), re.M)
  if not named or named[1] != version:
    sys.exit(f"The newest release of CHANGELOG.md is {version}, and "
             f"synthesizer_mtf.__version__ {named and named[1]}: make them equal.")
  citation = ROOT / "CITATION.cff"
  citation.write_text(cited(citation.read_text(encoding="utf-8"), version, date))
  shutil.rmtree(ROOT / "dist", ignore_errors=True)
  subprocess.run([UV, "build", "--quiet", ROOT], check=True)
  files = sorted((ROOT / "dist").glob("*.[wt]*"))
  subprocess.run([UV, "tool", "run", TWINE, "check", "--strict", *files], check=True)
  for path in files:
    print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB")


def newest(changelog: str) -> tuple[str, str]:
  """Returns the version and the date of the newest release."""
  found = re.search(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", changelog, re.M)
  if not found:
    sys.exit("CHANGELOG.md has no heading with a version and a date, as in "
             "## 0.2.0 (2026-11-26).")
  return found[1], found[2]


def cited(citation: str, version: str, date: str) -> str:
  """Returns CITATION.cff with another version and date."""
  citation = re.sub(r"^date-released: .*\n", "", citation, flags=re.M)
  return re.sub(r"^version: .*$", f"version: {version}\ndate-released: {date}",
                citation, flags=re.M)


if __name__ == "__main__":
  main()
