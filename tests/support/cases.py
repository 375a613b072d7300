"""The shared table of attentions under test. A new variant is one more row.

Each row has the variant's formula, written from the paper and not from our code. The
tests derive everything else from the formula: gradients, packed and padded rows,
decoding, meshes, random configurations, warm starts, and exported models.
"""

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st
import numpy as np
from support import patterns
from support import reference
import synthesizer_mtf
from synthesizer_mtf.attention import functions

HEADS = 3
D_KV = 5
D_MODEL = 11


class Call(NamedTuple):
  """The data that a formula may use.

  Attributes:
    x: <float64>[batch, length, d_model]
    ids: <int>[batch, length], the ids of each row's examples; 0 for padding.
    heads: an integer.
    decoder: whether the stack generates one token after another.
    parameters: a dict of the variant's given parameters.
  """
  x: np.ndarray
  ids: np.ndarray
  heads: int
  decoder: bool = False
  parameters: dict = {}

  @property
  def position(self):
    """<int>[batch, length]: the position of each token in its example."""
    return reference.positions(self.ids)


class Sizes(NamedTuple):
  """The sizes that determine variables' shapes, besides the variant's parameters.

  Attributes:
    d_model: an integer.
    heads: an integer.
    d_kv: an integer.
    sees_later: whether queries attend to later keys, as in encoders.
  """
  d_model: int = D_MODEL
  heads: int = HEADS
  d_kv: int = D_KV
  sees_later: bool = True

  @property
  def projection(self):
    return [self.d_model, self.heads * self.d_kv]


class Variant(NamedTuple):
  """A row of the table.

  Attributes:
    parameters: the layer's parameters in most tests, with `max_length` 12 if the layer
      has one. All sizes differ, so that tests notice confused dimensions.
    variables: a function (parameters, `Sizes`) that returns a dict from names to
      shapes.
    logits: a function (dict from names to variables, `Call`) that returns
      <float64>[batch, heads, length, memory_length]. Tables that are too short repeat.
    draw: a function (hypothesis's `draw`, length of the rows, whether they are in a
      decoder) that draws parameters.
  """
  parameters: dict
  variables: Callable[[dict, Sizes], dict]
  logits: Callable[[dict, Call], np.ndarray]
  draw: Callable[..., dict]


def draw_lengths(draw, length):
  """Draws the parameters of all classes whose tables depend on the longest sequence."""
  tile_length = draw(st.none() | st.integers(1, 9))
  # With tile_length the layer ignores max_length, however small.
  return {"tile_length": tile_length, "max_length": draw(
      st.integers(1 if tile_length else length, length + 5))}


def table_length(parameters):
  return parameters.get("tile_length") or parameters["max_length"]


def columns_at(table, position):
  """[batch, ..., columns] -> [batch, ..., length], repeated where too short."""
  return np.stack([t[..., p % t.shape[-1]] for t, p in zip(table, position)])


def heads_of(x, weights, heads):
  """x times weights: [batch, heads, length, d_kv]"""
  return np.einsum("bnd,dhk->bhnk", x, reference.per_head(weights, heads))


# V


def dot_product(p, call):
  return np.einsum("bhik,bhjk->bhij", heads_of(call.x, p["q"], call.heads),
                   heads_of(call.x, p["k"], call.heads))


# R and Fix


def random(p, call):
  position = call.position % p["R"].shape[-1]
  return np.stack([p["R"][:, rows[:, None], rows] for rows in position])


def random_variables(parameters, sizes):
  n = table_length(parameters)
  return {"R": [sizes.heads, n, n]}


def draw_random(draw, length, decoder):
  del decoder
  return {**draw_lengths(draw, length),
          "stddev": draw(st.sampled_from([1.0, 0.0, 0.1]))}


# FR


def factorized_random(p, call):
  r = np.einsum("hik,hjk->hij", p["R1"], p["R2"])
  return random({"R": r}, call)


def factorized_random_variables(parameters, sizes):
  factor = [sizes.heads, table_length(parameters), parameters["rank"]]
  return {"R1": factor, "R2": factor}


# T


def toeplitz(p, call):
  distance = call.position[:, :, None] - call.position[:, None, :]
  before, after = p["T"], p.get("T_after", np.zeros([call.heads, 1]))
  logits = np.where(
      distance >= 0, before[:, distance % before.shape[-1]],
      after[:, (-distance - 1) % after.shape[-1]])
  return logits.transpose(1, 0, 2, 3)


def toeplitz_variables(parameters, sizes):
  shapes = {"T": [sizes.heads, table_length(parameters)]}
  after = parameters.get("tile_length") or parameters["max_length"] - 1
  return {**shapes, "T_after": [sizes.heads, after]} if (
      sizes.sees_later and after) else shapes


# D


def dense(p, call):
  """relu(X W1 + b1) W2 + b2.

  W1 may be V's q, W2 may be the same for all heads, and b1 and b2 may be 0.
  """
  hidden = heads_of(call.x, p["W1"] if "W1" in p else p["q"], call.heads)
  d_kv = hidden.shape[-1]
  hidden = np.maximum(
      0, hidden + p.get("b1", np.zeros([call.heads, d_kv]))[:, None])
  w2 = np.broadcast_to(p["W2"], [call.heads, d_kv, p["W2"].shape[-1]])
  f = np.einsum("bhnk,hkm->bhnm", hidden, w2)
  f += p.get("b2", np.zeros([call.heads, f.shape[-1]]))[:, None]
  return columns_at(f, call.position)


def dense_variables(parameters, sizes):
  n = table_length(parameters)
  shapes = {"q" if parameters.get("share_query") else "W1": sizes.projection}
  shapes["W2"] = [sizes.d_kv, n]
  if not parameters.get("share_heads"):
    shapes["W2"] = [sizes.heads, sizes.d_kv, n]
  if parameters.get("use_bias"):
    shapes.update(b1=[sizes.heads, sizes.d_kv], b2=[sizes.heads, n])
  return shapes


# FD


def factorized_dense(p, call):
  hidden = np.maximum(0, heads_of(call.x, p["W1"], call.heads))
  a = np.einsum("bhnk,hka->bhna", hidden, p["WA"])
  b = np.einsum("bhnk,hkc->bhnc", hidden, p["WB"])
  c = np.repeat(a, b.shape[-1], -1) * np.tile(b, a.shape[-1])
  return columns_at(c, call.position)


def factorized_dense_variables(parameters, sizes):
  n, a, b = table_length(parameters), parameters.get("a"), parameters.get("b")
  if not a and not b:  # the largest divisor up to the root
    a = max(k for k in range(1, n + 1) if not n % k and k * k <= n)
  a = a or n // b
  return {"W1": sizes.projection, "WA": [sizes.heads, sizes.d_kv, a],
          "WB": [sizes.heads, sizes.d_kv, n // a]}


def draw_factorized_dense(draw, length, decoder):
  del decoder
  lengths = draw_lengths(draw, length)
  n = table_length(lengths)
  a = draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
  a, b = draw(st.sampled_from(
      [(a, n // a), (a, None), (None, n // a), (None, None)]))
  return {**lengths, "a": a, "b": b}


# LD

LEFT_OUT = -1e30  # The logit of a key that gets none.


def local_dense(p, call):
  """B = relu(X W1) WL: column k is the logit of the token k - c // 2 after the query.

  In a decoder it is that of the token k - (c - 1) after it.
  """
  hidden = np.maximum(0, heads_of(call.x, p["W1"], call.heads))
  b = np.einsum("bhnk,hkc->bhnc", hidden, p["WL"])
  c, length = b.shape[-1], call.x.shape[1]
  first = 1 - c if call.decoder else -(c // 2)
  logits = np.full([*b.shape[:-1], length], LEFT_OUT)
  for i in range(length):
    for k in range(c):
      if 0 <= i + first + k < length:
        logits[:, :, i, i + first + k] = b[:, :, i, k]
  return logits


def local_dense_variables(parameters, sizes):
  return {"W1": sizes.projection,
          "WL": [sizes.heads, sizes.d_kv, parameters["width"]]}


def together(parts, softmax=True):
  """Keys that a part leaves out get 0 from it if other parts reach them."""
  alone = softmax and len(parts) == 1
  return parts if alone else [np.where(part == LEFT_OUT, 0, part) for part in parts]


# Pattern


def hand_written(p, call):
  del p
  given = call.parameters["patterns"]
  weights = patterns.expected_weights(
      [given[h % len(given)] for h in range(call.heads)], call.ids, call.decoder)
  return np.log(np.maximum(weights, 1e-13))


def draw_hand_written(draw, length, decoder):
  del length
  return {"patterns": draw(st.lists(
      st.sampled_from(patterns.LEFT if decoder else patterns.NAMES),
      min_size=1, max_size=5))}


VARIANTS = {
    "V": Variant(
        {}, lambda parameters, sizes: {
            "q": sizes.projection, "k": sizes.projection},
        dot_product, lambda draw, length, decoder: {}),
    "R": Variant({"max_length": 12}, random_variables, random, draw_random),
    "Fix": Variant({"max_length": 12}, random_variables, random, draw_random),
    "FR": Variant(
        {"max_length": 12, "rank": 2}, factorized_random_variables,
        factorized_random, lambda draw, length, decoder: {
            **draw_random(draw, length, decoder),
            "rank": draw(st.integers(1, 4))}),
    "T": Variant(
        {"max_length": 12}, toeplitz_variables, toeplitz, draw_random),
    "D": Variant(
        {"max_length": 12}, dense_variables, dense,
        lambda draw, length, decoder: {
            **draw_lengths(draw, length), **{
                name: draw(st.booleans())
                for name in ("share_heads", "share_query", "use_bias")}}),
    "FD": Variant(
        {"max_length": 12, "b": 2}, factorized_dense_variables,
        factorized_dense, draw_factorized_dense),
    "LD": Variant(
        {"width": 4}, local_dense_variables, local_dense,
        lambda draw, length, decoder: {"width": draw(st.integers(1, length + 2))}),
    "Pattern": Variant(
        {"patterns": ["left_context", "previous", "current"]},
        lambda parameters, sizes: {}, hand_written, draw_hand_written),
}

# Mixtures under test, and parameters that differ from those of their parts.
MIXTURES = {"R+V": {}, "D+V": {}, "R+D": {}, "FR+V": {}, "FR+D+V": {},
            "Fix+FD+V": {"b": 4}}

NOTATIONS = [*VARIANTS, *MIXTURES]

# The parameters of whole layers in small models.
LAYERS = {
    "LightConv": {"kernel_size": 4, "kernels": "per_channel", "pointwise": True,
                  "use_bias": True},
    "DyConv": {"kernel_size": 4},
    "SparseFixed": {"relative_attention_type": "bias_shared", "stride": 3,
                    "columns": 1},
    "SparseStrided": {"relative_attention_type": "bias_shared", "stride": 3}}


def parameters_of(notation):
  """The parameters of a notation's synthesizing functions in most tests."""
  values = {}
  for part in notation.split("+"):
    values.update(VARIANTS[part].parameters)
  return {**values, **MIXTURES.get(notation, {})}


def bindings(notation):
  """The same parameters as gin bindings, without ranks; or those of a whole layer."""
  chosen = {notation: LAYERS.get(notation, {})}
  if notation not in LAYERS:
    chosen = {functions.SYNTHESIZING_FUNCTIONS[part].__name__: VARIANTS[part].parameters
              for part in notation.split("+") if part in VARIANTS}
  return [f"{cls}.{name} = {value!r}" for cls, parameters in chosen.items()
          for name, value in parameters.items() if name != "rank"]


def make_layer(notation, **kwargs):
  """Makes the layer of a row, by default without dropout."""
  kwargs = {"num_heads": HEADS, "key_value_size": D_KV, "dropout_rate": 0.0,
            **parameters_of(notation), **kwargs}
  return synthesizer_mtf.attention_layer(notation, **kwargs)


def mixed_logits(notation, p, x, ids, decoder, heads):
  """sum_i alpha_i S_i(X), with alpha a softmax over the parts, per head."""
  call = Call(x, ids, heads, decoder, parameters_of(notation))
  parts = together([VARIANTS[name].logits(p, call) for name in notation.split("+")])
  if len(parts) == 1:
    return parts[0]
  alpha = reference.softmax(p["alpha"].astype(np.float64))
  return sum(alpha[:, i, None, None] * part for i, part in enumerate(parts))


def attention(notation, p, x, ids, decoder, heads):
  """Computes a whole layer by the formulas: [batch, length, d_model]."""
  p = {name: value.astype(np.float64) for name, value in p.items()}
  logits = mixed_logits(
      notation, p, x.astype(np.float64), ids, decoder, heads)
  return reference.output(
      logits, p, x, reference.mask(ids, decoder), heads)
