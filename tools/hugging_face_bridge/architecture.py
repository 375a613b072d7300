"""The sizes and the kind of a T5 model, whichever side describes it."""

import dataclasses

# From names of activations in Hugging Face's `feed_forward_proj` to those in Mesh
# TensorFlow. Gated activations multiply with a linear layer. Mesh's gelu is the tanh
# approximation, which in Hugging Face only "gated-gelu" stands for.
ACTIVATIONS = {
    "relu": ("relu",), "gelu_new": ("gelu",), "silu": ("swish",),
    "gated-relu": ("relu", "linear"), "gated-gelu": ("gelu", "linear"),
    "gated-silu": ("swish", "linear")}

# Mesh TensorFlow's relative position bias has this fixed `max_distance`.
MAX_DISTANCE = 128


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
