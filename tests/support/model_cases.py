"""Draws whole models and what they do, for the comparison of fast/ with plain formulas.

A case is a row of choices. `covering` draws rows that together have as many pairs of
choices as it finds, so that few cases combine each choice with many others.
"""

import itertools
from typing import Any
from typing import NamedTuple

import numpy as np

# Kinds of models, and how often they are drawn. Universal ones take five times as long.
KINDS = {"bitransformer": 6, "lm": 2, "prefix": 1, "delimited": 1, "shared": 2,
         "classifier": 2, "universal": 1, "act": 1}
_FOR_BEAMS = {"bitransformer", "shared", "universal", "act"}
# Attentions of a stack. All parts of the notation, alone and mixed, and whole layers.
SYNTHESIZED = ["R", "V", "FR+D+V", "T", "Fix+FD+V", "Pattern", "D", "R+V", "FD",
               "FR+T", "Pattern+R+D", "T+V", "LD", "LD+R+V"]
STOCK = "@transformer_layers.SelfAttention"
WHOLE = ["LightConv", "DyConv", "SparseFixed", "SparseStrided", STOCK]
ONE = ("", "")
# Meshes, and what they split.
MESHES = [("batch:2", "batch:batch"),
          ("model:2", "heads:model,d_ff:model,vocab:model"),
          ("all:2", "d_model:all"), ("all:2", "heads:all,d_ff:all"),
          ("batch:2,model:2", "batch:batch,heads:model,d_ff:model,vocab:model"),
          ("all:1", "vocab:all")]
# The ids of examples in rows: of many sizes, one, in any order, with padding between;
# and of rows with one example.
PACKED = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 0], [1] * 9, [7, 7, 2, 2, 2, 90, 0, 0, 0],
                   [0, 0, 1, 1, 1, 0, 2, 2, 2]])
PADDED = np.array([[1] * 9, [1] * 6 + [0] * 3, [1] + [0] * 8, [0] * 9])
LOSSES = [
    # Mesh's defaults.gin binds the first in the scope.
    ("decoder/Unitransformer.label_smoothing = 0.2", "Unitransformer.z_loss = 0.3",
     "Unitransformer.loss_denominator = 3.0"),
    ("VocabEmbedding.scale_variable_like_classifier_weights = True",)]
# Lines of gin, and arguments of `decode`.
NONE = (), ()
GREEDY = [NONE, (("Unitransformer.sample_autoregressive.max_steps = 3",), ())]
BEAMS = [
    ((), (("beam_size", 3), ("alpha", 0.6), ("decode_length_constant", 20))),
    (("beam_search.eos_id = 107",),
     (("beam_size", 2), ("alpha", 1.0), ("decode_length_constant", 20))),
    (("beam_search.stop_early = False", "beam_search.num_prefilter = 5"),
     (("beam_size", 2), ("alpha", 0.6), ("decode_length_multiplier", 0.0),
      ("decode_length_constant", 4)))]

# The choices that differ among cases with the same plain model, and how many there are
# of these in a row.
OF_FAST = {"mesh", "known", "tpu", "again", "chunk"}
IN_A_ROW = 3


class Case(NamedTuple):
  """A model and what it does; and what only the fast model has.

  Attributes:
    kind: one of `KINDS`: Mesh's types of models; "prefix", a language model that sees
      the whole prefix, and "delimited", one whose loss is on targets only; "shared",
      with one stack of layers; "universal", and "act" with adaptive computation time.
    task: "train", "eval", "greedy" or "beams".
    packed: whether rows hold several segments.
    encoder: the attention of the encoder's block.
    decoder: the attentions of the decoder's or the language model's blocks.
    bias: whether attentions have a relative position bias.
    softmax: whether synthesized logits have one.
    loss: further lines of gin, about the loss.
    tied: whether embeddings, and embedding and softmax, share their weights.
    activation: of feed-forward layers.
    dropout: the rate.
    bfloat16: whether activations are bfloat16.
    ensemble: None, or the number of models.
    search: further lines of gin, and arguments of `decode`.
    mesh: the shape and the layout of the mesh, in the fast model. The plain model has
      one processor, unless dropout draws other numbers on each processor.
    known: whether the models know their mesh.
    tpu: whether the fast model computes as on a TPU; "gpu" for XLA on a GPU.
    again: what the fast model repeats in the backward pass: "", "layers", or
      "microbatches" for all.
    chunk: the number of queries that the fast model computes at a time.
    seed: the seed of tokens and variables.
    positions: what tables count in packed rows: those of an "example", or of the "row".
    alone: whether each of the packed rows holds one example.
  """
  kind: str
  task: str
  packed: bool
  encoder: str
  decoder: tuple[str, ...]
  bias: bool
  softmax: bool
  loss: tuple[str, ...]
  tied: bool
  activation: str
  dropout: float
  bfloat16: bool
  ensemble: int | None
  search: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
  mesh: tuple[str, str]
  known: bool
  tpu: bool | str
  again: str
  chunk: int
  seed: int
  positions: str
  alone: bool

  @property
  def trains(self) -> bool:
    return self.task == "train"

  @property
  def decodes(self) -> bool:
    return self.task in ("greedy", "beams")

  @property
  def has_encoder(self) -> bool:
    return self.kind not in ("lm", "prefix", "delimited")

  @property
  def plain(self) -> "Case":
    """The case of the plain model, without what only the fast model has."""
    # Mesh TensorFlow's search takes a few tokens from each part of the vocabulary.
    is_split = self.dropout or self.task == "beams" and "vocab" in self.mesh[1]
    return self._replace(
        mesh=self.mesh if is_split else ONE, tpu=False, again="", chunk=0,
        known=self.known or self.task != "beams")

  @property
  def segments(self) -> np.ndarray:
    """The ids of the examples, 0 for padding: [batch, length]."""
    return PACKED if self.packed and not self.alone else PADDED


def draw(generator: np.random.RandomState, **fixed: Any) -> Case:
  """Draws a case.

  Args:
    generator: draws the numbers.
    **fixed: values of `Case` that are not drawn.
  """
  def one_of(name, *values):
    if name in fixed:
      return fixed[name]
    return values[generator.randint(len(values))]

  task = one_of("task", "train", "train", "train", "eval", "greedy", "beams")
  decodes = task in ("greedy", "beams")
  trains = task == "train"
  tpu = one_of("tpu", False, False, True, "gpu")
  ensemble = one_of("ensemble", None, None, None, 1, 2)
  kinds = {"bitransformer": 1} if ensemble else KINDS
  kind = one_of("kind", *[kind for kind, count in kinds.items() for _ in range(count)
                          if task != "beams" or kind in _FOR_BEAMS])
  packed = one_of("packed", *([False] if decodes or kind == "classifier" else
                              [False, True]))
  softmax = one_of("softmax", True, True, True, False)
  whole = WHOLE if softmax and not ensemble else []
  decoder = one_of("decoder", *[(name,) for name in [*SYNTHESIZED, *whole]])
  encoder = one_of("encoder", *SYNTHESIZED, *whole, *(
      ["Linformer"] if kind == "classifier" and softmax else []))
  if kind == "shared":
    encoder, = decoder
  dropout = one_of("dropout", *([0.0, 0.0, 0.25] if trains and not ensemble
                                else [0.0]))
  again = one_of("again", *(["", "layers", "microbatches"] if trains and not dropout
                            and not ensemble and kind not in ("universal", "act")
                            else [""]))
  # Mesh's variables of ACT have two dimensions d_model.
  mesh = one_of("mesh", ONE, ONE, *[mesh for mesh in MESHES
                                    if kind != "act" or "d_model" not in mesh[1]])
  return Case(
      kind=kind, task=task, packed=packed, encoder=encoder, decoder=decoder,
      bias=one_of("bias", False, True), softmax=softmax,
      loss=one_of("loss", (), *([] if kind == "classifier" else LOSSES)),
      tied=one_of("tied", False, True),
      activation=one_of("activation", "'relu'", "'relu'", "['gelu', 'linear']"),
      dropout=dropout,
      bfloat16=one_of("bfloat16", *([False, False, True] if trains else [False])),
      ensemble=ensemble,
      search=one_of("search", *{"greedy": GREEDY, "beams": BEAMS}.get(task, [NONE])),
      mesh=mesh, known=one_of("known", True, mesh == ONE or "vocab" in mesh[1]),
      tpu=tpu, again=again, chunk=one_of("chunk", 512, 3),
      seed=generator.randint(1000),
      positions=one_of("positions", "example", *["example", "row"] * packed),
      alone=one_of("alone", False, packed))


def numbered(seed: int, number: int) -> Case:
  """Draws a case by its number; a few in a row have most choices in common.

  So they often have the same plain model.
  """
  common = draw(np.random.RandomState([seed, number // IN_A_ROW]))._asdict()
  return draw(np.random.RandomState([seed, number, 1]), **{
      name: value for name, value in common.items() if name not in OF_FAST})


def covering(seed: int, rows: list[dict[str, Any]], candidates: int = 50) -> list[Case]:
  """Draws a case for each row, so that they have many pairs of choices together.

  Args:
    seed: an integer.
    rows: for each case the values that it has to have.
    candidates: how many cases to draw for each row, of which one is taken.
  """
  generator, seen, chosen = np.random.RandomState(seed), set(), []
  for row in rows:
    best = max((draw(generator, **row) for _ in range(candidates)),
               key=lambda case: len(_pairs(case) - seen))
    seen |= _pairs(best)
    chosen.append(best)
  return chosen


def _pairs(case):
  """All pairs of choices of a case."""
  choices = [item for item in case._asdict().items() if item[0] != "seed"]
  return set(itertools.combinations(choices, 2))
