"""The module `editdistance` for Pythons that its own wheels leave out.

seqio and t5 require it. Its newest version, 0.8.1, has wheels up to Python 3.12 and
wants a C++ compiler on later ones.
"""

from setuptools import setup

setup(
    name="editdistance",
    version="0.8.1+nltk",
    description="editdistance in Python, by nltk",
    py_modules=["editdistance"],
    install_requires=["nltk"],  # Which t5 requires, too.
)
