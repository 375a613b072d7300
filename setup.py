"""Installs `synthesizer_mtf`: Synthesizer attention for Mesh TensorFlow and T5.

`gin/`, `tasks/` and `tools/` lie at the top of the repository and install as
`synthesizer_mtf.gin`, `synthesizer_mtf.tasks` and `synthesizer_mtf.tools`.
`gin/` holds data only: an `__init__.py` there would shadow gin-config's `gin`
for everyone who works from the repository root.
"""

import os
import re
import sys

from setuptools import find_packages
from setuptools import setup

PYTHON_REQUIRES = ">=3.10,<3.12"


SUPPORTED = (3, 10) <= sys.version_info[:2] < (3, 12)


def check_python():
  """Exits with one sentence on a Python that TensorFlow 2.15 does not support.

  pip compares `python_requires` by itself and says so in one sentence, which
  an exit from here would bury in a build log: so pip's hooks are left alone.
  """
  if not SUPPORTED and "setuptools.build_meta" not in sys.modules:
    sys.exit("synthesizer_mtf needs Python 3.10 or 3.11, because "
             "TensorFlow 2.15 supports no other, but this is Python %d.%d: "
             "use one of those." % sys.version_info[:2])


def data_files(folder, suffix):
  """Returns the paths, relative to `folder`, of its files ending in `suffix`."""
  found = []
  for where, _, names in os.walk(folder):
    found += [os.path.relpath(os.path.join(where, name), folder)
              for name in names if name.endswith(suffix)]
  return sorted(found)


def long_description():
  """Returns README.md with its links to files of the repository as plain text.

  Where the description is shown those files are not.
  """
  with open("README.md", encoding="utf-8") as f:
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]+\)", r"\1", f.read())


check_python()

INSTALL_REQUIRES = [
    # The last TensorFlow whose Estimator and v1 API mesh and t5 still run on.
    "tensorflow==2.15.1",
    # The layers, the model and the trainer this package extends.
    "mesh-tensorflow==0.1.21",
    # The model files, tasks and launcher this package reuses.
    "t5==0.9.4",
    # Bindings name layers and parameters; messages are tested word for word.
    "gin-config==0.5.0",
    # Tasks and vocabularies; the newest release that pins its own TFDS build.
    "seqio-nightly==0.0.18.dev20250227",
    # Reads the data sets; the release nearest to the build that seqio pins,
    # so that it does not matter which of the two is installed last.
    "tensorflow-datasets==4.9.3",
    # seqio leaves it open, and each of its releases fits one TensorFlow only:
    # without the pin pip tries them one by one for minutes.
    "tensorflow-text==2.15.0",
    # Newer ones want protobuf 5 or later, TensorFlow 2.15 wants 4.
    "tensorflow-metadata<1.16",
    # seqio wants 0.2 or later; from 0.2.1 on the protobuf code needs protobuf
    # 5 or later.
    "sentencepiece==0.2.0",
    # mesh and t5 import pkg_resources, which setuptools has since removed.
    "setuptools<81",
    # TensorFlow 2.15 was compiled against NumPy 1.
    "numpy>=1.23,<2",
    # Draws loss curves and attention maps.
    "matplotlib>=3.7,<4",
    # Progress bars.
    "tqdm>=4.60,<5",
    # BLEU, as t5 computes it.
    "sacrebleu>=2.3,<3",
    # The names of languages and countries that the demo learns to translate.
    "babel>=2.12,<3",
]

DIALOGUE_REQUIRES = [
    # METEOR; since 3.9 its data is read without unpickling.
    "nltk>=3.9,<4",
    # BLEU, ROUGE-L and CIDEr; the only version on PyPI since 2020.
    "pycocoevalcap==1.2",
]

CACHE_REQUIRES = [
    # Runs seqio_cache_tasks; the last one whose protobuf TensorFlow 2.15 takes.
    "apache-beam==2.61.0",
]

TEST_REQUIRES = DIALOGUE_REQUIRES + CACHE_REQUIRES + [
    # Runs the tests.
    "pytest>=7,<10",
    # Runs them on two cores.
    "pytest-xdist>=3,<4",
    # Draws configurations at random, the same with the same version.
    "hypothesis==6.141.1",
    # Finds mistakes that need no run; its rules change between versions.
    "ruff==0.17.6",
]

setup(
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
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_packages(include=["synthesizer_mtf", "synthesizer_mtf.*"]) + [
        "synthesizer_mtf.gin",
        "synthesizer_mtf.tasks",
        "synthesizer_mtf.tools",
    ] + ["synthesizer_mtf.tools." + name for name in find_packages("tools")],
    package_dir={
        "synthesizer_mtf.gin": "gin",
        "synthesizer_mtf.tasks": "tasks",
        "synthesizer_mtf.tools": "tools",
    },
    package_data={
        "synthesizer_mtf.gin": data_files("gin", ".gin"),
    },
    python_requires=PYTHON_REQUIRES,
    # Else pip complains of a missing TensorFlow, and not of the Python.
    install_requires=INSTALL_REQUIRES if SUPPORTED else [],
    extras_require={
        "cache": CACHE_REQUIRES,
        "dialogue": DIALOGUE_REQUIRES,
        "test": TEST_REQUIRES,
    },
    entry_points={
        "console_scripts": [
            "synthesizer_mesh_transformer = "
            "synthesizer_mtf.launcher:console_entry_point",
        ],
    },
)
