"""Says where the files of `synthesizer_mtf` are; pyproject.toml says the rest.

`gin/`, `tasks/` and `tools/` lie at the top of the repository and install as
`synthesizer_mtf.gin`, `synthesizer_mtf.tasks` and `synthesizer_mtf.tools`.
`gin/` holds data only: an `__init__.py` there would shadow gin-config's `gin`
for everyone who works from the repository root. `studies/` is only in editable
installations, because it is part of the repository, not of the package.
"""

import os
import re
import sys

SUPPORTED = (3, 10) <= sys.version_info[:2] < (3, 14)


def check_python():
  """Exits with one sentence on a Python that neither stack supports.

  When pip builds the package, this function does nothing. pip checks
  `python_requires` by itself and prints one sentence. An exit from here would bury
  that sentence in a build log.
  """
  if not SUPPORTED and "setuptools.build_meta" not in sys.modules:
    sys.exit("synthesizer_mtf needs Python 3.10 to 3.13, because its "
             "TensorFlow has wheels for no other, but this is Python %d.%d: "
             "use one of those." % sys.version_info[:2])


def data_files(folder, suffix):
  """Returns the paths, relative to `folder`, of its files ending in `suffix`."""
  found = []
  for where, _, names in os.walk(folder):
    found += [os.path.relpath(os.path.join(where, name), folder)
              for name in names if name.endswith(suffix)]
  return sorted(found)


def long_description():
  """Returns README.md, with plain text instead of links to files of the repository.

  The pages that show the description do not have these files.
  """
  with open("README.md", encoding="utf-8") as f:
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]+\)", r"\1", f.read())


check_python()

from setuptools import Distribution
from setuptools import find_packages
from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

from distutils.command.install_data import install_data  # isort: skip, of setuptools


class WithData(Distribution):
  """A distribution whose data files an editable installation installs, too.

  setuptools looks for a method of this name then, but has none.
  """

  def has_data(self):
    return self.has_data_files()


class InstallBeside(install_data):
  """Installs the data files beside the packages, where Python reads .pth files."""

  def finalize_options(self):
    self.set_undefined_options(
        "install", ("install_lib", "install_dir"), ("root", "root"), ("force", "force"))


class WithStudies(editable_wheel):
  """Lets an editable installation, and no other one, find the folder studies/."""

  def run(self):
    if os.path.isdir("studies"):  # A source distribution has none.
      self.distribution.packages.append("studies")
    super().run()


setup(
    distclass=WithData,
    cmdclass={"install_data": InstallBeside, "editable_wheel": WithStudies},
    long_description=long_description(),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["synthesizer_mtf", "synthesizer_mtf.*"]) + [
        "synthesizer_mtf.gin",
        "synthesizer_mtf.tasks",
        "synthesizer_mtf.tools",
    ] + ["synthesizer_mtf.tools." + name for name in find_packages("tools")],
    py_modules=["synthesizer_mesh_transformer", "synthesizer_mtf_start"],
    # Lets t5_mesh_transformer start; the module of this name says how.
    data_files=[("", ["synthesizer_mtf_start.pth"])],
    package_dir={
        "synthesizer_mtf.gin": "gin",
        "synthesizer_mtf.tasks": "tasks",
        "synthesizer_mtf.tools": "tools",
    },
    package_data={
        "synthesizer_mtf": ["help/*.txt", "py.typed"],
        "synthesizer_mtf.gin": data_files("gin", ".gin"),
        "synthesizer_mtf.tools.base": ["pictures.mplstyle"],
        "synthesizer_mtf.tools.plot_attention": ["page.html"],
        # Copied beside exported models. It needs PyTorch; this package does not.
        "synthesizer_mtf.tools.hugging_face": ["pytorch/*.py"],
    },
)
