"""The module `editdistance` for Pythons that its own wheels leave out.

t5 calls one function of it. Its version 0.8.1 has wheels up to Python 3.12, and needs
a C++ compiler on later ones.
"""

from setuptools import setup

setup(
    name="editdistance",
    version="0.8.1+nltk",
    description="editdistance.distance by nltk, in Python",
    py_modules=["editdistance"],
    install_requires=["nltk"],  # Comes with t5, too.
)
