"""What a T5 model is, whichever side describes it: its sizes and its kind."""

import dataclasses

# Names of activations of Mesh TensorFlow by those of Hugging Face's
# `feed_forward_proj`. Gated ones multiply with a linear layer. Mesh's gelu is the
# approximation by tanh, which Hugging Face means by "gated-gelu" alone.
ACTIVATIONS = {
    "relu": ("relu",), "gelu_new": ("gelu",), "silu": ("swish",),
    "gated-relu": ("relu", "linear"), "gated-gelu": ("gelu", "linear"),
    "gated-silu": ("swish", "linear")}

# Mesh TensorFlow's relative position bias has this `max_distance`, without a parameter.
MAX_DISTANCE = 128


@dataclasses.dataclass(frozen=True)
class Architecture:
  """A T5 model without its weights.

  Attributes:
    d_model: an integer.
    d_kv: an integer, the size of a head.
    d_ff: an integer.
    heads: an integer.
    encoder_layers: an integer.
    decoder_layers: an integer; 0 for an encoder alone.
    vocab_size: an integer, the rows of the embedding.
    feed_forward: a key of `ACTIVATIONS`.
    tied: whether the embedding, scaled, is the output layer as well.
    buckets: an integer, of the relative position bias.
    dropout_rate: a float.
    epsilon: a float, of the normalizations.
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
