"""Types of the tools' arguments, for argparse."""

import argparse


def positive(text):
  """A whole number of at least 1."""
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f"{text} is not at least 1")
  return number


def not_negative(text):
  """A whole number of at least 0."""
  number = int(text)
  if number < 0:
    raise argparse.ArgumentTypeError(f"{text} is below 0")
  return number
