"""Writes the interactive page: one file, which needs no network.

`page.html` is the frame of the page and has all of its behavior. This module adds the
weights as JSON, and plotly.js, which draws them.
"""

import base64
import contextlib
import importlib
import json
import os
import pathlib
from typing import Any

from matplotlib import colormaps
from matplotlib import colors
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.plot_attention import course
from synthesizer_mtf.tools.plot_attention import figures
from synthesizer_mtf.tools.plot_attention import reader
from synthesizer_mtf.trainer.model import summaries
import tensorflow.compat.v1 as tf

_FRAME = pathlib.Path(__file__).with_name("page.html")

# Weights are stored as multiples of 1/50000, which fit into two bytes. The largest
# number marks masked keys.
SCALE = 50000
MASKED = 65535

# A larger page makes browsers slow.
_MOST_BYTES = 100_000_000

# From "initial" and "trained" to a dict from layers to `Attention`.
States = dict[str, dict[str, reader.Attention]]


def check(path: str) -> None:
  """Checks, before a model runs for long, that a page can be written.

  Args:
    path: the path of the page.

  Raises:
    ValueError: the name does not end in .html, nothing can be written there, or
      plotly is not installed.
  """
  if not path.endswith(".html"):
    raise checks.Error(f"--html is {path!r} but must end in .html; name a file "
                       "such as attention.html.")
  if tf.io.gfile.isdir(path):
    raise checks.Error(f"--html is {path!r}, which is a folder; name a file.")
  _plotly()
  with _unfinished(path) as beside:
    _write(beside, "")


def write(path: str, layers: list[reader.Layer], states: States,
          courses: dict[str, course.Course], about: dict[str, str]) -> None:
  """Writes the page; replaces an existing one only when the new one is complete.

  Args:
    path: the path of the page.
    states: a dict from "initial" and "trained" to dicts from names of layers to
      `reader.Attention`.
    courses: a dict from names of mixtures to `course.Course`.
    about: the text at the top of the page: a title, and a line for each other entry.

  Raises:
    ValueError: the page would be too large, or cannot be written.
  """
  text = render(content(layers, states, courses, about))
  with _unfinished(path) as beside:
    _write(beside, text)
    tf.io.gfile.rename(beside, path, overwrite=True)


def content(layers: list[reader.Layer], states: States,
            courses: dict[str, course.Course],
            about: dict[str, str]) -> dict[str, Any]:
  """Returns the contents of the page, ready for JSON; see `write`."""
  _check_size(states)
  colormap = colormaps[figures.MAP]
  return {"about": about, "scale": SCALE, "masked": MASKED,
          "colors": [colors.to_hex(c) for c in colormap(range(colormap.N))],
          "layers": [_layer(layer, states, courses.get(layer.name))
                     for layer in layers]}


def render(shown: dict[str, Any]) -> str:
  """Returns the page as a string.

  Args:
    shown: what `content` returns.
  """
  # "<" would let a token such as </script> end the JSON.
  data = json.dumps(shown, separators=(",", ":")).replace("<", r"\u003c")
  before, between, after = _FRAME.read_text(encoding="utf-8").split("@@")
  return before + _plotly().get_plotlyjs() + between + data + after


def _plotly():
  try:
    return importlib.import_module("plotly.offline")
  except ModuleNotFoundError as error:
    raise checks.Error(
        "--html needs plotly, which is not installed; install "
        "synthesizer-mtf's extra named page, by pip install '.[page]' in its "
        "checkout.") from error


def _check_size(states):
  size = sum(attention.weights.size * 8 // 3 for by_layer in states.values()
             for attention in by_layer.values())
  if size > _MOST_BYTES:
    raise checks.Error(
        f"--html would be a page of {size / 1e6:,.0f} MB, more than "
        f"{_MOST_BYTES / 1e6:,.0f}; choose some layers with --layers, or fewer "
        "tokens with --length.")


def _layer(layer, states, alphas):
  attention = {state: by_layer[layer.name] for state, by_layer in states.items()}
  shown = {"name": layer.name, "stack": layer.stack,
           "attention": layer.attention,
           "tokens": attention["trained"].tokens,
           "weights": {state: [_packed(head, a.mask) for head in a.weights]
                       for state, a in attention.items()}}
  if alphas:
    shown["parts"] = [
        {"name": name, "color": colors.to_hex(f"C{figures.place(part)}")}
        for name, part in zip(summaries.unique_names(layer.parts), layer.parts)]
    shown["alpha"] = {state: _rounded(a.alpha) for state, a in attention.items()}
    shown["course"] = {
        "steps": alphas.steps, "alpha": _rounded(alphas.alpha),
        "means": [[sorted(means), _rounded([means[s] for s in sorted(means)])]
                  for means in alphas.means]}
  return shown


def _packed(weights, mask):
  """Returns weights [length, memory_length] as little-endian bytes in base64."""
  whole = np.round(np.clip(weights, 0, 1) * SCALE)
  return base64.b64encode(
      np.where(mask, whole, MASKED).astype("<u2").tobytes()).decode()


def _rounded(values):
  return np.round(np.asarray(values, float), 4).tolist()


@contextlib.contextmanager
def _unfinished(path):
  """Yields a path beside `path` to write to; removes what is left there at the end."""
  beside = f"{path}.unfinished"
  try:
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    yield beside
  except tf.errors.OpError as error:
    raise checks.Error(f"--html is {path!r}, which cannot be written: "
                       f"{error.message}. Name another.") from error
  finally:
    with contextlib.suppress(tf.errors.OpError):
      tf.io.gfile.remove(beside)


def _write(path, text):
  with tf.io.gfile.GFile(path, "w") as f:
    f.write(text)
