"""Checks the type annotations of the package, its tasks and its tools by mypy.

    make lint

`tasks/` and `tools/` lie beside `synthesizer_mtf`, but are parts of it once installed.
So mypy reads a folder of links that looks like the installed package. `gin/` is not
there, which mypy would take for gin-config.
"""

import os
import pathlib
import sys
import tempfile

from mypy import api

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "synthesizer_mtf"


def main() -> int:
  with tempfile.TemporaryDirectory() as folder:
    package = pathlib.Path(folder, PACKAGE)
    package.mkdir()
    for path in [*(ROOT / PACKAGE).iterdir(), ROOT / "tasks", ROOT / "tools"]:
      (package / path.name).symlink_to(path)
    os.chdir(folder)
    said, failed, code = api.run([
        f"--config-file={ROOT}/pyproject.toml", f"--cache-dir={ROOT}/.mypy_cache",
        f"--package={PACKAGE}", *sys.argv[1:]])
  for name in ("tasks", "tools"):
    said = said.replace(f"{PACKAGE}/{name}/", f"{name}/")
  print(said, end="")
  print(failed, end="", file=sys.stderr)
  return code


if __name__ == "__main__":
  sys.exit(main())
