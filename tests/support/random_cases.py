"""Draws attention layers and batches at random, for hypothesis.

A layer consists of a user's choices: a notation and values of gin's parameters. This
module draws every parameter of the synthesizing functions, of mixtures, of
`SyntheticAttention`, and of convolutions and sparse attentions.
"""

from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st
import numpy as np
from support import cases as table
from support import whole_layers
from synthesizer_mtf.attention import functions

PACKED = ["features", "subsequences"]
PADDED = ["made up", "one"]


class Layer(NamedTuple):
  """One attention layer.

  Attributes:
    notation: a string, such as "FR+D+V".
    parameters: a dict from names in gin to values.
  """
  notation: str
  parameters: dict

  @property
  def parts(self):
    return self.notation.split("+")

  @property
  def is_whole(self):
    """Whether the layer has a class of its own."""
    return self.notation in whole_layers.LAYERS

  def get(self, name, default=None):
    """Returns a parameter of the layer, or of the class in `name`."""
    owner = self.notation if self.is_whole else "SyntheticAttention"
    return self.parameters.get(name if "." in name else f"{owner}.{name}", default)

  def part_settings(self, part):
    """Returns the parameters of a part, without those that are None."""
    prefix = f"{class_name(part)}."
    return {name[len(prefix):]: value for name, value in self.parameters.items()
            if name.startswith(prefix) and value is not None}


def class_name(part):
  known = functions.SYNTHESIZING_FUNCTIONS
  return known[part].__name__ if part in known else part


class Case(NamedTuple):
  """Layers that share one stack, and the batch for their calls.

  Attributes:
    layers: a list of `Layer`; all are called with the same tokens.
    mode: "train" for outputs and gradients, "eval", or "steps" for a prefix and then
      step by step.
    length: the length of all rows.
    d_model: the number of channels of the tokens.
    rows: for each row, a list with the number of tokens of each example. In the mode
      "steps" the list holds the length of the prefix. With beams, all rows have the
      same prefix.
    decoder: whether queries attend to no later keys.
    ids: how the batch marks examples and padding: "none" marks nothing; "made up" is
      `mtf.minimum(inputs, 1)`, as Mesh does; "features" are those of T5, "one" the
      same with one example in a row; "subsequences" are several targets of an input.
    prefix: the length of each row's prefix, which all queries attend to; or None.
    beams: 0, or the size of the dimension `beam`, in the mode "steps".
    mesh_shape: the heads are split over `model` and the batch over `batch`.
    tpu: whether the layers compute as they do on TPUs.
    activation: the type of the activations.
    queries_at_a_time: see `attend._QUERY_CHUNK_SIZE`.
    initial: whether variables keep their initial values.
    seed: the seed of the tokens and of the variables.
  """
  layers: list
  rows: list
  length: int
  d_model: int = 5
  mode: str = "eval"
  decoder: bool = False
  ids: str = "none"
  prefix: list | None = None
  beams: int = 0
  mesh_shape: str = ""
  tpu: bool = False
  activation: str = "float32"
  queries_at_a_time: int = 512
  initial: bool = False
  seed: int = 0

  @property
  def sees_later(self):
    """Whether queries see later keys, as T5's models of these kinds do."""
    return not self.decoder or self.prefix is not None

  @property
  def segments(self):
    """The ids of the examples, 0 for padding: [batch, length]."""
    ids = np.zeros([len(self.rows) * max(1, self.beams), self.length], int)
    if self.mode == "steps":
      return ids + 1
    for row, examples in zip(ids, self.rows):
      row[:sum(examples)] = np.repeat(range(1, len(examples) + 1), examples)
    return ids

  @property
  def priority(self):
    """A token sees tokens whose priority is not higher than its own: [batch, length]"""
    positions = np.arange(self.length)[None]
    if self.prefix is None:
      return positions
    return positions * (positions >= np.array(self.prefix)[:, None])

  @property
  def visible(self):
    """The keys that each query sees: <bool>[batch, length, memory_length]."""
    ids = self.segments
    mask = ids[:, :, None] == ids[:, None, :]
    if self.decoder:
      mask = mask & (self.priority[:, :, None] >= self.priority[:, None, :])
    return mask


@st.composite
def cases(draw, part, settings, decoder, marks, tpu):
  """Draws a `Case` that has the synthesizing function or the layer `part`.

  Args:
    draw: hypothesis's.
    part: a string, such as "FR" or "DyConv".
    settings: a list of modes and meshes.
    decoder: a list of values of `Case.decoder`.
    marks: a list of values of `Case.ids`.
    tpu: a list of values of `Case.tpu`.
  """
  mode, mesh_shape = draw(st.sampled_from(settings))
  ids, tpu = draw(st.sampled_from(marks)), draw(st.sampled_from(tpu))
  packed = ids in PACKED
  lengths = [3, 4, 5, 6, 7] + [9, 11] * (part in whole_layers.LAYERS)
  length = draw(st.sampled_from(lengths if packed else [*lengths, 1]))
  decoder = ids == "subsequences" or draw(st.sampled_from(decoder))
  batch = draw(st.integers(1, 3)) * (2 if "batch" in mesh_shape else 1)
  rows = draw(st.lists(
      _row(mode, ids, length), min_size=batch, max_size=batch))
  first = draw(st.integers(1, max(1, length - 1)))
  if packed:
    rows[0] = [first, draw(st.integers(1, length - first))]
  elif ids != "none":
    rows[0] = [first]
  prefix = None
  if decoder and mode != "steps" and draw(st.booleans()):
    prefix = draw(st.lists(
        st.integers(0, length), min_size=batch, max_size=batch))
  two = not mesh_shape and mode != "steps" and draw(
      st.sampled_from([False, False, True]))
  layer = _layer(part, 2 if two else 4, length, decoder, mode, mesh_shape,
                 max(map(len, rows)) < 2)
  layers = draw(st.lists(layer, min_size=1 + two, max_size=1 + two))
  for name in layers[0].parameters:
    if name.endswith("num_buckets"):  # A shared table has one size.
      layers[-1].parameters[name] = layers[0].parameters[name]
  beams = draw(st.integers(0, 3)) if mode == "steps" else 0
  if beams:
    rows = rows[:1] * batch
  seed = draw(st.integers(0, 99))
  hypothesis.assume(seed)  # Its first case has the smallest of all values.
  return Case(
      layers, rows, length, draw(st.integers(1, 7)), mode, decoder, ids, prefix,
      beams, mesh_shape, tpu,
      "float32" if mode == "steps" else draw(
          st.sampled_from(["float32"] * 5 + ["bfloat16"])),
      draw(st.sampled_from([512, 512, 2, 3])), draw(st.booleans()), seed)


def _row(mode, ids, length):
  """Draws one of `Case.rows`."""
  if mode == "steps":  # at most two steps
    return st.integers(max(0, length - 2), length - 1).map(lambda n: [n])
  if ids == "none":
    return st.just([length])
  if ids not in PACKED:
    return st.integers(0, length).map(lambda n: [n])
  return st.lists(st.integers(1, length), max_size=4).map(
      lambda examples: _fitting(examples, length))


def _fitting(examples, length):
  """Returns the examples that fit into a row, one after another."""
  row = []
  for example in examples:
    if sum(row) + example <= length:
      row.append(example)
  return row


@st.composite
def _layer(draw, part, max_parts, length, decoder, mode, mesh_shape, one_example):
  """Draws a `Layer` that takes `length` tokens in this mode, on this mesh."""
  is_whole = part in whole_layers.LAYERS
  owner = part if is_whole else "SyntheticAttention"
  parameters = {f"{owner}.{name}": draw(values) for name, values in {
      "num_heads": (
          st.sampled_from([2, 4]) if "model" in mesh_shape else st.integers(1, 4)),
      "key_value_size": st.integers(1, 5),
      "dropout_rate": st.sampled_from([0.0] if mode == "train" else [0.0, 0.5]),
      "packed": st.sampled_from([None, True] + [False] * one_example),
      **({} if "Conv" in part else {
          "relative_attention_type": st.sampled_from([None, "bias", "bias_shared"]),
          "relative_attention_num_buckets": st.integers(4, 12) | st.just(32)})}.items()}
  if is_whole:
    chosen = whole_layers.LAYERS[part][1](draw, length)
    parameters.update({f"{part}.{name}": value for name, value in chosen.items()})
    return Layer(part, parameters)
  parts = draw(st.lists(st.sampled_from(list(table.VARIANTS)), max_size=max_parts - 1))
  parts.insert(draw(st.integers(0, len(parts))), part)
  parameters["SyntheticAttention.softmax"] = draw(st.booleans())
  parameters["Mixture.weights"] = draw(
      st.sampled_from(["per_head", "per_layer", "sum"]))
  for part in dict.fromkeys(parts):
    chosen = table.VARIANTS[part].draw(draw, length, decoder)
    parameters.update({f"{class_name(part)}.{name}": value
                       for name, value in chosen.items()})
  return Layer("+".join(parts), parameters)
