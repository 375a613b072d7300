"""Installs `synthesizer_mtf`: Synthesizer attention for Mesh TensorFlow and T5.

`gin/`, `tasks/` and `tools/` lie at the top of the repository and install as
`synthesizer_mtf.gin`, `synthesizer_mtf.tasks` and `synthesizer_mtf.tools`.
`gin/` holds data only: an `__init__.py` there would shadow gin-config's `gin`
for everyone who works from the repository root. `studies/` is only in editable
installations, because it is part of the repository, not of the package.
"""

import os
import re
import sys

PYTHON_REQUIRES = ">=3.10,<3.14"

SUPPORTED = (3, 10) <= sys.version_info[:2] < (3, 14)

# The two stacks. mesh and t5 were written for the older one. The newer one is for
# Pythons without a wheel of TensorFlow 2.15.
OLD = '; python_version < "3.12"'
NEW = '; python_version >= "3.12"'


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

INSTALL_REQUIRES = [
    # The last TensorFlow with its own Estimator and v1 API, and a later one. For the
    # later one, estimator_shim.py restores the Estimator.
    "tensorflow==2.15.1" + OLD,
    "tensorflow==2.21.0" + NEW,
    # The Estimator. No other package of the newer stack requires it.
    "tensorflow-estimator==2.15.0",
    # The layers, the model and the trainer that this package extends.
    "mesh-tensorflow==0.1.21",
    # The model files, tasks and launcher that this package reuses.
    "t5==0.9.4",
    # Bindings name layers and parameters; tests read the messages.
    "gin-config==0.5.0",
    # Tasks and vocabularies; the newest release that pins its own TFDS build.
    "seqio-nightly==0.0.18.dev20250227",
    # Reads the data sets. These releases are nearest to the build that seqio pins, so
    # the order in which pip installs the two does not matter.
    "tensorflow-datasets==4.9.3" + OLD,
    "tensorflow-datasets==4.9.10" + NEW,
    # The newer TFDS imports this to prepare data, but does not require it.
    "importlib-resources" + NEW,
    # seqio accepts any release, but each release fits only one TensorFlow. Without the
    # pin, pip would try the releases one by one for minutes.
    "tensorflow-text==2.15.0" + OLD,
    "tensorflow-text==2.21.1" + NEW,
    # Newer releases need protobuf 5 or later, but TensorFlow 2.15 needs protobuf 4.
    # Older releases need absl-py below 2.
    "tensorflow-metadata>=1.15,<1.16" + OLD,
    # seqio needs 0.2 or later. The protobuf code of 0.2.1 needs protobuf 5 or later,
    # and the protobuf code of 0.2.3 needs 7. TensorFlow 2.21 needs protobuf 6.
    "sentencepiece==0.2.0" + OLD,
    "sentencepiece==0.2.1" + NEW,
    # mesh, t5 and gin import pkg_resources and distutils. These releases have both;
    # later releases, or Python itself, have removed them.
    "setuptools<81",
    # TensorFlow 2.15 was compiled against NumPy 1.
    "numpy>=1.23,<2" + OLD,
    "numpy>=2,<3" + NEW,
    # Makes tables of the scores of several seeds.
    "pandas>=2,<4",
    # Computes intervals and tests of these scores.
    "scipy>=1.11,<2",
    # Reads Parquet. TFDS and packages that t5 requires also install it.
    "pyarrow>=14,<26",
    # Draws loss curves and attention maps.
    "matplotlib>=3.7,<4",
    # Progress bars.
    "tqdm>=4.60,<5",
    # BLEU, as t5 computes it.
    "sacrebleu>=2.3,<3",
    # Reads Hugging Face's weight files. 0.6 is the first with bfloat16 in NumPy.
    "safetensors>=0.6,<1",
    # The names of languages and countries that the demo learns to translate.
    "babel>=2.12,<3",
    # Flags and the logger, which TensorFlow, T5 and seqio share.
    "absl-py>=2,<3",
    # Reads SentencePiece's models; each TensorFlow accepts certain versions.
    "protobuf>=3.20.3,<5" + OLD,
    "protobuf>=6,<7" + NEW,
]

DIALOGUE_REQUIRES = [
    # METEOR; since 3.9 its data is read without unpickling.
    "nltk>=3.9,<4",
    # BLEU, ROUGE-L and CIDEr; the only version on PyPI since 2020.
    "pycocoevalcap==1.2",
]

CACHE_REQUIRES = [
    # Runs seqio_cache_tasks: the last release whose protobuf TensorFlow 2.15 accepts,
    # and a later one with the packages that it needs for TFRecord files.
    "apache-beam==2.61.0" + OLD,
    "apache-beam[tfrecord]==2.77.0" + NEW,
]

PAGE_REQUIRES = [
    # The page of plot_attention --html contains its JavaScript, which draws the page.
    "plotly>=7,<8",
]

GPU_REQUIRES = [
    # NVIDIA's libraries, in the versions that this TensorFlow was built with.
    "tensorflow[and-cuda]==2.15.1" + OLD,
    "tensorflow[and-cuda]==2.21.0" + NEW,
]

TENSORBOARD_REQUIRES = [
    # Shows training, and compares the rows of reproduce. The later TensorFlow does not
    # install it.
    "tensorboard>=2.15,<3",
]

TEST_REQUIRES = DIALOGUE_REQUIRES + CACHE_REQUIRES + PAGE_REQUIRES + (
    TENSORBOARD_REQUIRES) + [
    # Runs the tests.
    "pytest>=7,<10",
    # Runs the tests on two cores.
    "pytest-xdist>=3,<4",
    # The last release with T5 on Flax. Tests compare imported and exported models with
    # this T5.
    "transformers==4.57.6",
    "flax>=0.10,<1",
    "jax>=0.4.30,<1",
    # Weights of Hugging Face in bfloat16. TensorFlow requires a certain version.
    "ml-dtypes>=0.3,<1",
    # A client of TensorBoard's server.
    "werkzeug>=3,<4",
    # Reads names of wheels and markers, for the lock files.
    "packaging>=24",
    # Finds and ends the processes that tests have started.
    "psutil>=5.9,<8",
    # Draws random configurations. The same version draws the same configurations.
    "hypothesis==6.141.1",
    # Makes environments, also in tests. Without a uv on the path, pip fetches this one.
    "uv>=0.13,<0.14",
    # Finds mistakes without running code. Its rules change between versions.
    "ruff==0.17.6",
    # Checks type annotations. Its findings change between versions.
    "mypy==2.4.1",
]


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
    name="synthesizer-mtf",
    version="0.2.0",
    description="Synthesizer attention (arXiv:2005.00743) for Mesh TensorFlow "
                "and T5",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="the synthesizer_mtf authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
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
        "synthesizer_mtf.gin": data_files("gin", ".gin"),
        "synthesizer_mtf.tools.attention_plots": ["page.html"],
    },
    python_requires=PYTHON_REQUIRES,
    # Otherwise pip reports a missing TensorFlow instead of an unsupported Python.
    install_requires=INSTALL_REQUIRES if SUPPORTED else [],
    extras_require={
        "cache": CACHE_REQUIRES,
        "dialogue": DIALOGUE_REQUIRES,
        "gpu": GPU_REQUIRES,
        "page": PAGE_REQUIRES,
        "tensorboard": TENSORBOARD_REQUIRES,
        "test": TEST_REQUIRES,
    },
    entry_points={
        "console_scripts": [
            "synthesizer_mesh_transformer = synthesizer_mesh_transformer:main",
        ],
    },
)
