"""A page of `plot_attention --html`: what it shows in tests, and the data in one."""

import base64
import json
import re

import numpy as np
from synthesizer_mtf.tools.plot_attention import course
from synthesizer_mtf.tools.plot_attention import reader

TOKENS = ["</script><script>alert(1)</script>", "<b>bold</b>", "&lt;", "$a$", "ü@@"]
ABOUT = {"title": "<i>models</i>", "initial": "step 0", "trained": "step 5"}


def _attention(seed, causal=False, alpha=None, tokens=TOKENS):
  generator = np.random.RandomState(seed)
  mask = np.ones((5, 5), bool)
  mask = np.tril(mask) if causal else mask
  weights = generator.rand(2, 5, 5) * mask
  return reader.Attention(weights / weights.sum(-1, keepdims=True), mask,
                          tokens, alpha)


def example():
  """The arguments of `page.write`, except the path."""
  layers = [reader.Layer("encoder/0", "V", [], True),
            reader.Layer("decoder/0", "R+R", ["R", "R"], False)]

  def state(seed, alpha):
    return {"encoder/0": _attention(seed), "decoder/0": _attention(
        seed + 1, True, np.array(alpha), [None] * 5)}

  alpha = np.array([[[.5, .5], [.5, .5]], [[.2, .8], [.6, .4]]])
  states = {"initial": state(0, alpha[0]), "trained": state(2, alpha[1])}
  courses = {"decoder/0": course.Course([0, 5], alpha, [{5: .4, 1: .5}, {}])}
  return layers, states, courses, ABOUT


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
