"""A T5 model without its values: sizes, kind, and its weights on both sides."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

from synthesizer_mtf.tools.hugging_face import attention
from synthesizer_mtf.tools.hugging_face.weight import Weight

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


class Classifier(NamedTuple):
  """What follows the encoder of a classifier.

  Attributes:
    labels: the names of the classes.
    rows: the number of rows of the output layer, at least one more.
    pooling: "mean" or "first".
    hidden_sizes: the sizes of the layers before the output layer.
  """
  labels: tuple[str, ...]
  rows: int
  pooling: str = "mean"
  hidden_sizes: tuple[int, ...] = ()


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
    classifier: a `Classifier`, or None.
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
  classifier: Classifier | None = None

  @property
  def stacks(self) -> dict[str, int]:
    """The number of blocks of each stack, by its name."""
    stacks = {"encoder": self.encoder_layers, "decoder": self.decoder_layers}
    return {name: layers for name, layers in stacks.items() if layers}

  @property
  def gated(self) -> bool:
    """Whether the feed-forward layers have a second, linear one."""
    return len(ACTIVATIONS[self.feed_forward]) > 1


# The self-attention of each block, by (stack, number of the block).
Blocks = Mapping[tuple[str, int], attention.Attention]


def weights(arch: Architecture, blocks: Blocks, is_t5: bool) -> list[Weight]:
  """Returns all weights of a model.

  Args:
    arch: an `Architecture`.
    blocks: the self-attention of each block.
    is_t5: whether Hugging Face's names are those of T5.
  """
  embedding = Weight("shared/embedding", EMBEDDING,
                     (arch.vocab_size, arch.d_model), transposed=False)
  head = Weight("decoder/logits/kernel", HEAD, (arch.d_model, arch.vocab_size))
  of_blocks = [weight for stack, count in arch.stacks.items()
               for weight in _stack(arch, stack, count, blocks, is_t5)]
  return [embedding, *of_blocks, *([] if arch.tied else [head]), *_classifier(arch)]


def _classifier(arch):
  if arch.classifier is None:
    return
  sizes = [arch.d_model, *arch.classifier.hidden_sizes]
  for i, shape in enumerate(zip(sizes, sizes[1:])):
    yield Weight(f"classifier_hidden_{i}/kernel", f"hidden.{i}.weight", shape)
  yield Weight("classifier/kernel", "classifier.weight",
               (sizes[-1], arch.classifier.rows))


def _stack(arch, stack, count, blocks, is_t5) -> Iterator[Weight]:
  own = [blocks[stack, block] for block in range(count)]
  for block, (found, has_bias) in enumerate(zip(own, attention.holds_bias(own))):
    for layer, cls in enumerate(layers(stack)):
      mesh = f"{stack}/block_{block:03d}/layer_{layer:03d}/"
      theirs = f"{stack}.block.{block}.layer.{layer}."
      yield _norm(arch, f"{mesh}rms_norm", f"{theirs}layer_norm")
      if cls == SELF_ATTENTION:
        yield from _self_attention(
            arch, found, has_bias, mesh, f"{theirs}{cls}.", stack, is_t5)
        continue
      for name, kernel, shape in _variables(arch, cls):
        yield Weight(f"{mesh}{cls}/{name}{kernel}", f"{theirs}{cls}.{name}.weight",
                     shape)
  yield _norm(arch, f"{stack}/rms_norm", f"{stack}.final_layer_norm")


def _self_attention(arch, found, has_bias, mesh, theirs, stack, is_t5):
  sizes = attention.Sizes(arch.d_model, found.heads, found.d_kv)
  for own in attention.variables(found, sizes, stack == "decoder", has_bias):
    name = own.hugging_face
    if is_t5:
      name = name.removeprefix("synthesizers.0.")
    yield own._replace(mesh=f"{mesh}{found.scope}/{own.mesh}",
                       hugging_face=f"{theirs}{name}")


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
