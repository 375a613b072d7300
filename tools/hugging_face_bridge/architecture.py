"""A T5 model without its values: sizes, kind, and its weights on both sides."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import numpy as np

# From names of activations in Hugging Face's `feed_forward_proj` to those in Mesh
# TensorFlow. Gated activations multiply with a linear layer. Mesh's gelu is the tanh
# approximation. In Hugging Face only "gated-gelu" means this approximation.
ACTIVATIONS = {
    "relu": ("relu",), "gelu_new": ("gelu",), "silu": ("swish",),
    "gated-relu": ("relu", "linear"), "gated-gelu": ("gelu", "linear"),
    "gated-silu": ("swish", "linear")}

# Mesh TensorFlow's relative position bias has this fixed `max_distance`.
MAX_DISTANCE = 128

# Names of Hugging Face's weights.
EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"

# Other names under which files repeat the embedding.
EMBEDDING_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

# Files of old versions have this weight. No model uses it, and transformers drops it.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

SELF_ATTENTION = "SelfAttention"


@dataclasses.dataclass(frozen=True)
class Architecture:
  """A T5 model without its weights.

  Attributes:
    d_model: an integer.
    d_kv: an integer, the size of a head.
    d_ff: an integer.
    heads: an integer.
    encoder_layers: an integer, the number of blocks.
    decoder_layers: an integer; 0 for an encoder alone.
    vocab_size: an integer, the number of rows of the embedding.
    feed_forward: a key of `ACTIVATIONS`.
    tied: whether the output layer is the scaled embedding.
    buckets: an integer, the buckets of the relative position bias.
    dropout_rate: a float.
    epsilon: a float, the epsilon of the layer norms.
  """
  d_model: int
  d_kv: int
  d_ff: int
  heads: int
  encoder_layers: int
  decoder_layers: int
  vocab_size: int
  feed_forward: str = "relu"
  tied: bool = True
  buckets: int = 32
  dropout_rate: float = 0.1
  epsilon: float = 1e-6

  @property
  def stacks(self) -> dict[str, int]:
    """The number of blocks of each stack, by its name."""
    stacks = {"encoder": self.encoder_layers, "decoder": self.decoder_layers}
    return {name: layers for name, layers in stacks.items() if layers}

  @property
  def gated(self) -> bool:
    """Whether the feed-forward layers have a second, linear one."""
    return len(ACTIVATIONS[self.feed_forward]) > 1


class Weight(NamedTuple):
  """A weight on both sides.

  Attributes:
    mesh: the name in a checkpoint of Mesh TensorFlow.
    hugging_face: the name in Hugging Face's files.
    shape: the shape of Mesh's variable.
    transposed: whether Hugging Face stores the transpose.
  """
  mesh: str
  hugging_face: str
  shape: tuple[int, ...]
  transposed: bool = True

  @property
  def their_shape(self) -> tuple[int, ...]:
    """The shape in Hugging Face's files."""
    return self.shape[::-1] if self.transposed else self.shape

  def turned(self, value: np.ndarray) -> np.ndarray:
    """Returns the value of one side as the other side stores it."""
    return value.T if self.transposed else value


def weights(arch: Architecture,
            scopes: Mapping[tuple[str, int], str] = {}) -> list[Weight]:
  """Returns all weights of a model.

  Args:
    arch: an `Architecture`.
    scopes: a dict from (stack, number of the block) to the class of self-attention,
      which names the scope of Mesh's variables; `SELF_ATTENTION` for those missing.
  """
  embedding = Weight("shared/embedding", EMBEDDING,
                     (arch.vocab_size, arch.d_model), transposed=False)
  head = Weight("decoder/logits/kernel", HEAD, (arch.d_model, arch.vocab_size))
  blocks = [weight for stack, count in arch.stacks.items()
            for weight in _stack(arch, stack, count, scopes)]
  return [embedding, *blocks, *([] if arch.tied else [head])]


def _stack(arch, stack, count, scopes) -> Iterator[Weight]:
  for block in range(count):
    for layer, cls in enumerate(layers(stack)):
      mesh = f"{stack}/block_{block:03d}/layer_{layer:03d}/"
      theirs = f"{stack}.block.{block}.layer.{layer}."
      yield _norm(arch, f"{mesh}rms_norm", f"{theirs}layer_norm")
      scope = scopes.get((stack, block), cls) if cls == SELF_ATTENTION else cls
      for name, kernel, shape in _variables(arch, cls):
        yield Weight(f"{mesh}{scope}/{name}{kernel}", f"{theirs}{cls}.{name}.weight",
                     shape)
      if cls == SELF_ATTENTION and block == 0:
        name = "relative_attention_bias"
        yield Weight(f"{mesh}{scope}/{name}", f"{theirs}{cls}.{name}.weight",
                     (arch.heads, arch.buckets))
  yield _norm(arch, f"{stack}/rms_norm", f"{stack}.final_layer_norm")


def layers(stack: str) -> list[str]:
  """Returns the classes of a block's layers, which name their scopes on both sides."""
  cross = ["EncDecAttention"] if stack == "decoder" else []
  return [SELF_ATTENTION, *cross, "DenseReluDense"]


def _norm(arch, mesh, theirs):
  return Weight(f"{mesh}/scale", f"{theirs}.weight", (arch.d_model,),
                transposed=False)


def _variables(arch, cls):
  """Returns (name, suffix of the name in Mesh, shape) of a layer's matrices."""
  if cls == "DenseReluDense":
    into = ["wi_0", "wi_1"] if arch.gated else ["wi"]
    return [*((name, "/kernel", (arch.d_model, arch.d_ff)) for name in into),
            ("wo", "/kernel", (arch.d_ff, arch.d_model))]
  inner = arch.heads * arch.d_kv
  return [*((name, "", (arch.d_model, inner)) for name in "qkv"),
          ("o", "", (inner, arch.d_model))]
