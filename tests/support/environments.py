"""New environments, and what the package leaves in them."""

import subprocess
import sys

from support.clones import UV
from support.processes import LIMIT

_BUILD = ("import sys; from setuptools import build_meta as b; "
          "print(getattr(b, sys.argv[1])(sys.argv[2]))")
_HOOKS = ("import sys; print(sum(type(f).__module__ == 'synthesizer_mtf_start' "
          "for f in sys.meta_path), 'tensorflow' in sys.modules)")


def output(*words, **more):
  """Returns the output of a program that succeeds."""
  done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                        timeout=LIMIT, check=False, **more)
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout.strip()


def build(kind, source, folder):
  """Calls `build_wheel` or another function of setuptools; returns the new file."""
  folder.mkdir(exist_ok=True)
  printed = output(sys.executable, "-c", _BUILD, kind, folder, cwd=source)
  return folder / printed.splitlines()[-1]


class Environment:
  """A new environment of this Python."""

  def __init__(self, folder):
    output(UV, "venv", folder, "--python", sys.executable)
    self.python = folder / "bin" / "python"
    self.site, = folder.glob("lib/python*/site-packages")

  def files(self):
    """The files in site-packages, without compiled modules."""
    return {str(path.relative_to(self.site)) for path in self.site.rglob("*")
            if path.is_file() and path.suffix != ".pyc"}

  def hooks(self):
    """The number of our start-up hooks, and whether TensorFlow is imported."""
    done = subprocess.run([self.python, "-c", _HOOKS], capture_output=True, text=True,
                          check=True)
    assert not done.stderr
    return done.stdout.strip()

  def has(self, module):
    """Whether a module can be imported."""
    return output(self.python, "-c", "import importlib.util as u, sys; "
                  "print(u.find_spec(sys.argv[1]) is not None)", module,
                  cwd=self.site) == "True"
