"""Installs a stand-in for `editdistance`, for Pythons without a wheel of it.

seqio and t5 require `editdistance`. Its newest version, 0.8.1, has wheels up to Python
3.12. On later Pythons it needs a C++ compiler.
"""

from setuptools import setup

setup(
    name="editdistance",
    version="0.8.1+nltk",
    description="editdistance in Python, by nltk",
    py_modules=["editdistance"],
    install_requires=["nltk"],  # t5 also requires nltk.
)
