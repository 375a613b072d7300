"""Installs `synthesizer_mtf`: Synthesizer attention for Mesh TensorFlow and T5.

`gin/`, `tasks/` and `tools/` lie at the top of the repository and install as
`synthesizer_mtf.gin`, `synthesizer_mtf.tasks` and `synthesizer_mtf.tools`.
`gin/` holds data only: an `__init__.py` there would shadow gin-config's `gin`
for everyone who works from the repository root.
"""

import os
import re
import sys

PYTHON_REQUIRES = ">=3.10,<3.14"

SUPPORTED = (3, 10) <= sys.version_info[:2] < (3, 14)

# Two stacks. The older is what mesh and t5 were written for; the newer is for
# Pythons that TensorFlow 2.15 has no wheel for.
OLD = '; python_version < "3.12"'
NEW = '; python_version >= "3.12"'


def check_python():
  """Exits with one sentence on a Python that no TensorFlow of ours supports.

  pip compares `python_requires` by itself and says so in one sentence, which
  an exit from here would bury in a build log: so pip's hooks are left alone.
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
  """Returns README.md with its links to files of the repository as plain text.

  Where the description is shown those files are not.
  """
  with open("README.md", encoding="utf-8") as f:
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]+\)", r"\1", f.read())


check_python()

from setuptools import find_packages
from setuptools import setup

INSTALL_REQUIRES = [
    # The last TensorFlow that has an Estimator and a v1 API of its own, and a
    # later one, to which estimator_shim.py gives the Estimator back.
    "tensorflow==2.15.1" + OLD,
    "tensorflow==2.21.0" + NEW,
    # On the newer stack nothing else asks for it.
    "tensorflow-estimator==2.15.0",
    # The layers, the model and the trainer this package extends.
    "mesh-tensorflow==0.1.21",
    # The model files, tasks and launcher this package reuses.
    "t5==0.9.4",
    # Bindings name layers and parameters; messages are tested word for word.
    "gin-config==0.5.0",
    # Tasks and vocabularies; the newest release that pins its own TFDS build.
    "seqio-nightly==0.0.18.dev20250227",
    # Reads the data sets; the releases nearest to the build that seqio pins,
    # so that it does not matter which of the two is installed last.
    "tensorflow-datasets==4.9.3" + OLD,
    "tensorflow-datasets==4.9.10" + NEW,
    # The newer release imports it when it prepares data, and does not say so.
    "importlib-resources" + NEW,
    # seqio leaves it open, and each of its releases fits one TensorFlow only:
    # without the pin pip tries them one by one for minutes.
    "tensorflow-text==2.15.0" + OLD,
    "tensorflow-text==2.21.1" + NEW,
    # Newer ones want protobuf 5 or later, TensorFlow 2.15 wants 4; older ones want an
    # absl before 2.
    "tensorflow-metadata>=1.15,<1.16" + OLD,
    # seqio wants 0.2 or later. From 0.2.1 on the protobuf code needs protobuf
    # 5 or later, that of 0.2.3 needs 7, and TensorFlow 2.21 wants 6.
    "sentencepiece==0.2.0" + OLD,
    "sentencepiece==0.2.1" + NEW,
    # mesh, t5 and gin import pkg_resources and distutils, which setuptools has
    # and later ones or Python have removed.
    "setuptools<81",
    # TensorFlow 2.15 was compiled against NumPy 1.
    "numpy>=1.23,<2" + OLD,
    "numpy>=2,<3" + NEW,
    # Tables of what several seeds have scored.
    "pandas>=2,<4",
    # Their intervals and tests.
    "scipy>=1.11,<2",
    # Reads Parquet; TFDS and what t5 needs come with it, too.
    "pyarrow>=14,<26",
    # Draws loss curves and attention maps.
    "matplotlib>=3.7,<4",
    # Progress bars.
    "tqdm>=4.60,<5",
    # BLEU, as t5 computes it.
    "sacrebleu>=2.3,<3",
    # Reads Hugging Face's files of weights; bfloat16 in NumPy since then.
    "safetensors>=0.6,<1",
    # The names of languages and countries that the demo learns to translate.
    "babel>=2.12,<3",
    # Flags and the logger, which TensorFlow, T5 and seqio share.
    "absl-py>=2,<3",
    # Reads the models of SentencePiece; its versions move with TensorFlow.
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
    # Runs seqio_cache_tasks; the last one whose protobuf TensorFlow 2.15 takes,
    # and one with what it needs for files of records.
    "apache-beam==2.61.0" + OLD,
    "apache-beam[tfrecord]==2.77.0" + NEW,
]

PAGE_REQUIRES = [
    # Its JavaScript draws the page of plot_attention --html, which holds it.
    "plotly>=7,<8",
]

GPU_REQUIRES = [
    # NVIDIA's libraries, in the versions that this TensorFlow was built with.
    "tensorflow[and-cuda]==2.15.1" + OLD,
    "tensorflow[and-cuda]==2.21.0" + NEW,
]

TENSORBOARD_REQUIRES = [
    # Shows training, and compares the rows of reproduce; the later TensorFlow comes
    # without it.
    "tensorboard>=2.15,<3",
]

TEST_REQUIRES = DIALOGUE_REQUIRES + CACHE_REQUIRES + PAGE_REQUIRES + (
    TENSORBOARD_REQUIRES) + [
    # Runs the tests.
    "pytest>=7,<10",
    # Runs them on two cores.
    "pytest-xdist>=3,<4",
    # The last ones with T5 on Flax, which imported and exported models are
    # compared with.
    "transformers==4.57.6",
    # Finds what tests have started, and ends it.
    "psutil>=5.9,<8",
    # Draws configurations at random, the same with the same version.
    "hypothesis==6.141.1",
    # Makes environments, also in tests; where there is none, pip fetches this one.
    "uv>=0.13,<0.14",
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
    py_modules=["synthesizer_mesh_transformer"],
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
    # Else pip complains of a missing TensorFlow, and not of the Python.
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
