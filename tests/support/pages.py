"""Reads the data of a page of `plot_attention --html`."""

import base64
import json
import re

import numpy as np


def parse(text):
  """Returns the JSON in the text of a page."""
  return json.loads(re.search(
      r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def data(path):
  """Returns the JSON in the page at a path."""
  return parse(path.read_text(encoding="utf-8"))


def weights(shown, name, state):
  """The weights of a layer: [heads, length, memory_length], NaN for masked keys."""
  layer, = (layer for layer in shown["layers"] if layer["name"] == name)
  size = len(layer["tokens"])
  numbers = np.stack([
      np.frombuffer(base64.b64decode(head), "<u2").reshape(size, size)
      for head in layer["weights"][state]])
  return np.where(numbers == shown["masked"], np.nan, numbers / shown["scale"])
