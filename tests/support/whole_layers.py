"""The formulas of attention layers that are not synthesized, from their papers."""

from typing import NamedTuple

from hypothesis import strategies as st
import numpy as np
from support import cases
from support import reference


class Call(NamedTuple):
  """What a formula gets.

  Attributes:
    x: <float64>[batch, length, d_model]
    ids: <int>[batch, length], the ids of each row's examples; 0 for padding.
    visible: <bool>[batch, length, memory_length], the keys that the mask leaves.
    decoder: whether the stack generates one token after another.
    parameters: a dict of all parameters of the layer.
    bias: <float64>[heads, length, memory_length], of relative positions; or 0.
  """
  x: np.ndarray
  ids: np.ndarray
  visible: np.ndarray
  decoder: bool
  parameters: dict
  bias: np.ndarray | float


def light_convolution(p, call):
  """Wu et al. (arXiv:1901.10430), equations 1 to 3 and the module around them."""
  def projected(name, x):
    return x @ p[name] + p.get(f"{name}_bias", 0.0)

  glu = projected("v", call.x) / (1 + np.exp(-projected("gate", call.x)))
  logits = p["W"] if p["W"].ndim == 2 else (  # DyConv predicts them.
      np.einsum("bnc,ckh->bnkh", glu, p["W"]) + p.get("W_bias", 0.0))
  size, heads = logits.shape[-2:]
  kernel = reference.softmax(np.swapaxes(logits, -1, -2))
  kernel = np.repeat(kernel, glu.shape[-1] // heads, -2)
  kernel = np.broadcast_to(kernel, [*glu.shape, size])
  out, left = np.zeros_like(glu), size - 1 if call.decoder else (size - 1) // 2
  for i, j in np.ndindex(call.ids.shape[1], size):
    if 0 <= i + j - left < call.ids.shape[1]:
      same = call.ids[:, i + j - left] == call.ids[:, i]
      out[:, i] += kernel[:, i, :, j] * glu[:, i + j - left] * same[:, None]
  out += p.get("bias", 0.0)
  return projected("o", projected("pointwise", out) if "pointwise" in p else out)


def draw_convolution(draw, length):
  return {"kernel_size": draw(st.integers(1, length + 5)),
          "kernels": draw(st.sampled_from(["per_head", "per_channel"])),
          "pointwise": draw(st.booleans()), "use_bias": draw(st.booleans())}


def sparse_attention(p, call):
  """Dot-product attention to the sets of arXiv:1904.10509, section 4.3."""
  heads, stride, pattern = (
      call.parameters[name] for name in ("num_heads", "stride", "pattern"))
  position = reference.positions(call.ids)
  i, j = position[:, None, :, None], position[:, None, None]
  head = np.arange(heads)[:, None, None]
  if "columns" in call.parameters:
    columns = call.parameters["columns"]
    turn = (head // 2 if pattern == "alternate" else head) % (stride // columns)
    t = stride - columns * (turn * call.parameters["distinct_columns"] + 1)
    local, summary = i // stride == j // stride, (j % stride - t) // columns == 0
  else:
    local, summary = abs(i - j) <= stride, (i - j) % stride == 0
  seen = call.visible[:, None] & {
      "merged": local | summary, "local": local, "summary": summary,
      "alternate": np.where(head % 2, summary, local)}[pattern]
  logits = cases.dot_product(p, cases.Call(call.x, call.ids, heads)) + call.bias
  weights = np.exp(logits - logits.max(-1, keepdims=True)) * seen
  total = weights.sum(-1, keepdims=True)
  weights /= np.where(total, total, 1)  # The mean of no values is 0.
  mean = weights @ cases.heads_of(call.x, p["v"], heads)
  return np.einsum("bhik,hkd->bid", mean, p["o"].reshape(heads, -1, call.x.shape[-1]))


def draw_sparse(draw, length):
  return {"stride": draw(st.integers(1, length + 2)),
          "pattern": draw(st.sampled_from(["merged", "local", "summary", "alternate"]))}


def draw_fixed(draw, length):
  drawn = draw_sparse(draw, length)
  return {**drawn, "columns": draw(st.integers(1, drawn["stride"])),
          "distinct_columns": draw(st.booleans())}


# From a name in the notation to the formula, and to a function of hypothesis's `draw`
# and the length of the rows, which draws the layer's own parameters.
LAYERS = {"LightConv": (light_convolution, draw_convolution),
          "DyConv": (light_convolution, draw_convolution),
          "SparseFixed": (sparse_attention, draw_fixed),
          "SparseStrided": (sparse_attention, draw_sparse)}
