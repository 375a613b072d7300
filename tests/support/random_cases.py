"""Draws attention layers and batches at random, for hypothesis.

A layer is what a user chooses: a notation and values of gin's parameters. Every
parameter of the synthesizing functions, of mixtures and of `SyntheticAttention`
is drawn here.
"""

from typing import NamedTuple

from hypothesis import strategies as st
from support import cases as table
from synthesizer_mtf.synthesizers import names

# Modes and meshes. What takes long is drawn less often: each device and each
# step is a graph more.
SETTINGS = (
    [("eval", "")] * 6 + [("train", "")] * 4 + [("steps", "")] * 3 +
    [("train", "model:2"), ("train", "batch:2"), ("train", "batch:2,model:2"),
     ("steps", "model:2")])


class Layer(NamedTuple):
  """One attention layer.

  Attributes:
    notation: as "FR+D+V".
    parameters: values by their names in gin.
  """
  notation: str
  parameters: dict

  @property
  def parts(self):
    return self.notation.split("+")

  def get(self, name, default=None):
    """A parameter of `SyntheticAttention`, or of the class that is named."""
    name = name if "." in name else f"SyntheticAttention.{name}"
    return self.parameters.get(name, default)

  def of_part(self, part):
    """The parameters of one of the parts which are not None."""
    prefix = f"{class_name(part)}."
    return {name[len(prefix):]: value for name, value in self.parameters.items()
            if name.startswith(prefix) and value is not None}


def class_name(part):
  return names.SYNTHESIZING_FUNCTIONS[part].__name__


class Case(NamedTuple):
  """Layers that share one stack, and the batch that they are called with.

  Attributes:
    layers: a list of `Layer`; all are called with the same tokens.
    mode: "train", "eval", or "steps" for a prefix and then step by step.
    length: of all rows.
    d_model: channels of the tokens.
    rows: a list with the numbers of tokens of the examples of each row. In the
      mode "steps", the length of its prefix; one for all rows of a beam search.
    decoder: whether tokens see only earlier ones.
    ids: how the batch marks examples and padding: "none" marks nothing; "made
      up" is `mtf.minimum(inputs, 1)`, as Mesh does; "features" are those of T5;
      "subsequences" are several targets of one input.
    prefix: how many tokens of each row all see, or None.
    beams: 0, or the size of the dimension `beam`, in the mode "steps".
    mesh_shape: the heads are split over `model` and the batch over `batch`.
    queries_at_a_time: see `attend._QUERY_CHUNK_SIZE`.
    initial: whether variables keep their initial values.
    seed: of the tokens and of the variables.
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
  queries_at_a_time: int = 512
  initial: bool = False
  seed: int = 0


@st.composite
def cases(draw):
  """Draws a `Case`."""
  mode, mesh_shape = draw(st.sampled_from(SETTINGS))
  length = draw(st.integers(1, 7))
  decoder = mode == "steps" or draw(st.booleans())
  ids = "none"
  if mode != "steps":
    ids = draw(st.sampled_from(["none", "made up", "features"] + (
        ["subsequences"] if decoder else [])))
  batch = draw(st.integers(1, 3)) * (2 if "batch" in mesh_shape else 1)
  rows = draw(st.lists(_row(mode, ids, length), min_size=batch, max_size=batch))
  prefix = None
  if decoder and mode != "steps" and draw(st.booleans()):
    prefix = draw(st.lists(
        st.integers(0, length), min_size=batch, max_size=batch))
  two = not mesh_shape and mode != "steps" and draw(
      st.sampled_from([False, False, True]))
  layer = _layer(2 if two else 4, length, decoder, mode, mesh_shape,
                 max(map(len, rows)) < 2)
  layers = draw(st.lists(layer, min_size=1 + two, max_size=1 + two))
  if two:  # what a stack shares is of one size
    buckets = "SyntheticAttention.relative_attention_num_buckets"
    layers[1].parameters[buckets] = layers[0].parameters[buckets]
  beams = draw(st.integers(0, 3)) if mode == "steps" else 0
  if beams:
    rows = rows[:1] * batch
  return Case(
      layers, rows, length, draw(st.integers(1, 7)), mode, decoder, ids, prefix,
      beams, mesh_shape, draw(st.sampled_from([512, 512, 2, 3])),
      draw(st.booleans()), draw(st.integers(0, 99)))


def _row(mode, ids, length):
  """Draws one of `Case.rows`."""
  if mode == "steps":  # at most two steps
    return st.integers(max(0, length - 2), length - 1).map(lambda n: [n])
  if ids == "none":
    return st.just([length])
  if ids == "made up":
    return st.integers(0, length).map(lambda n: [n])
  return st.lists(st.integers(1, length), max_size=4).map(
      lambda examples: _fitting(examples, length))


def _fitting(examples, length):
  """Those of the examples that fit into a row, one after the other."""
  row = []
  for example in examples:
    if sum(row) + example <= length:
      row.append(example)
  return row


@st.composite
def _layer(draw, max_parts, length, decoder, mode, mesh_shape, one_example):
  """Draws a `Layer` that takes `length` tokens in this mode, on this mesh."""
  parts = draw(st.lists(
      st.sampled_from(list(table.VARIANTS)), min_size=1, max_size=max_parts))
  heads = st.sampled_from([2, 4]) if "model" in mesh_shape else st.integers(1, 4)
  parameters = {f"SyntheticAttention.{name}": draw(values) for name, values in {
      "num_heads": heads,
      "key_value_size": st.integers(1, 5),
      "dropout_rate": st.sampled_from([0.0] if mode == "train" else [0.0, 0.5]),
      "relative_attention_type": st.sampled_from([None, "bias", "bias_shared"]),
      "relative_attention_num_buckets": st.integers(4, 12) | st.just(32),
      "packed": st.sampled_from([None, True] + [False] * one_example),
      "softmax": st.booleans()}.items()}
  parameters["Mixture.weights"] = draw(
      st.sampled_from(["per_head", "per_layer", "sum"]))
  for part in dict.fromkeys(parts):
    chosen = table.VARIANTS[part].draw(draw, length, decoder)
    parameters.update({f"{class_name(part)}.{name}": value
                       for name, value in chosen.items()})
  return Layer("+".join(parts), parameters)
