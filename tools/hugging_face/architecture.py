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
    d_kv: the size of a head.
    encoder_layers: the number of blocks.
    decoder_layers: the number of blocks; 0 for an encoder alone.
    vocab_size: the number of rows of the embedding.
    feed_forward: a key of `ACTIVATIONS`.
    tied: whether the output layer is the scaled embedding.
    buckets: those of the relative position bias.
    epsilon: that of the layer norms.
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
  def kind(self) -> str:
    """What the model does: "encoder-decoder", "encoder" or "classifier"."""
    if self.classifier:
      return "classifier"
    return "encoder-decoder" if self.decoder_layers else "encoder"

  @property
  def gated(self) -> bool:
    """Whether the feed-forward layers have a second, linear one."""
    return len(ACTIVATIONS[self.feed_forward]) > 1


# The self-attention of each block, by (stack, number of the block).
Blocks = Mapping[tuple[str, int], attention.Attention]


def weights(arch: Architecture, blocks: Blocks, is_t5: bool) -> list[Weight]:
  """Returns all weights of a model.

  Args:
    arch: the model without its self-attention.
    blocks: the self-attention of each block.
    is_t5: whether Hugging Face's names are those of T5.
  """
  embedding = Weight("shared/embedding", EMBEDDING,
                     (arch.vocab_size, arch.d_model), transposed=False)
  head = Weight("decoder/logits/kernel", HEAD, (arch.d_model, arch.vocab_size))
  in_stacks = [weight for stack, count in arch.stacks.items()
               for weight in _stack(arch, stack, count, blocks, is_t5)]
  return [embedding, *in_stacks, *([] if arch.tied else [head]), *_classifier(arch)]


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
  for block, (self_attention, has_bias) in enumerate(
      zip(own, attention.holds_bias(own))):
    for number, cls in enumerate(layers(stack)):
      mesh = f"{stack}/block_{block:03d}/layer_{number:03d}/"
      theirs = f"{stack}.block.{block}.layer.{number}."
      yield _norm(arch, f"{mesh}rms_norm", f"{theirs}layer_norm")
      scope, variables = cls, _variables(arch, cls)
      if cls == SELF_ATTENTION:
        scope, variables = self_attention.scope, attention.variables(
            self_attention, arch.d_model, stack == "decoder", has_bias)
      for weight in variables:
        name = weight.hugging_face
        if is_t5:
          name = name.removeprefix("synthesizers.0.")
        yield weight._replace(mesh=f"{mesh}{scope}/{weight.mesh}",
                              hugging_face=f"{theirs}{cls}.{name}")
  yield _norm(arch, f"{stack}/rms_norm", f"{stack}.final_layer_norm")


def layers(stack: str) -> list[str]:
  """Returns the classes of a block's layers, which name their scopes on both sides."""
  cross = ["EncDecAttention"] if stack == "decoder" else []
  return [SELF_ATTENTION, *cross, "DenseReluDense"]


def _norm(arch, mesh, theirs):
  return Weight(f"{mesh}/scale", f"{theirs}.weight", (arch.d_model,),
                transposed=False)


def _variables(arch, cls):
  """Yields the weights of a layer but self-attention, with names from it on."""
  is_dense = cls == "DenseReluDense"
  into = (("wi_0", "wi_1") if arch.gated else ("wi",)) if is_dense else "qkv"
  inner = arch.d_ff if is_dense else arch.heads * arch.d_kv
  shapes = {**dict.fromkeys(into, (arch.d_model, inner)),
            "wo" if is_dense else "o": (inner, arch.d_model)}
  for name, shape in shapes.items():
    yield Weight(f"{name}/kernel" if is_dense else name, f"{name}.weight", shape)
