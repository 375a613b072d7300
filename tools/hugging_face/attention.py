"""Self-attention on both sides: its variables, and its description in `config.json`.

`pytorch/modeling_synthesizer.py` computes in PyTorch what a description says.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import copy
import functools
from typing import Any
from typing import NamedTuple

from mesh_tensorflow.transformer import transformer_layers
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import layer as attention
from synthesizer_mtf.attention.functions import fixed_patterns
from synthesizer_mtf.fast import cross_attention
from synthesizer_mtf.tools.hugging_face.weight import Weight

# Options that change what stock self-attention computes, and that cross-attention does
# not have.
_OPTIONS = ("attention_func", "use_hyperprompt", "hyperprompt_mtlshare",
            "hyperprompt_length_encoder", "hyperprompt_length_decoder")

_OF_TABLES = {"max_length": 512, "tile_length": None}

# The parameters of synthesizing functions that change what they compute, with the
# values that PyTorch takes where a description has none.
DEFAULTS: dict[str, dict[str, Any]] = {
    "V": {}, "R": _OF_TABLES, "Fix": _OF_TABLES, "FR": {**_OF_TABLES, "rank": 8},
    "T": _OF_TABLES,
    "D": {**_OF_TABLES, "share_heads": False, "share_query": False, "use_bias": False},
    "FD": {**_OF_TABLES, "a": 1, "b": 1},
    "Pattern": {"patterns": list(fixed_patterns.PAPER)}}

# The `model_type` of models with modeling_synthesizer.py.
SYNTHESIZER = "synthesizer"

# T5's relative position bias: one table for all layers of a stack.
SHARED = "bias_shared"

# The description of T5's self-attention.
T5 = {"synthesizers": [{"name": "V"}], "relative_bias": SHARED}


class Attention(NamedTuple):
  """A self-attention layer.

  Attributes:
    scope: the class of the layer, which names the scope of Mesh's variables.
    description: a dict, as `config.json` describes the layer.
    buckets: the number of buckets of a relative position bias.
    final: (final weights of the parts, progress to them) of an annealed mixture.
    kept: the indices of the parts whose weight is not 0, in an annealed mixture.
    parts: the descriptions of all its parts, which decide the names of variables.
  """
  scope: str
  description: dict[str, Any]
  heads: int
  d_kv: int
  buckets: int
  dropout_rate: float
  final: tuple[Sequence[float], float] | None = None
  kept: tuple[int, ...] | None = None
  parts: Sequence[dict[str, Any]] | None = None

  @property
  def drops(self) -> bool:
    """Whether parts are left out, because their weight is 0."""
    return self.final is not None and len(self.kept or ()) < len(self.final[0])

  @property
  def notation(self) -> str:
    """The name in the notation, such as "R+V"."""
    return "+".join(part["name"] for part in self.description["synthesizers"])

  @property
  def is_t5(self) -> bool:
    """Whether this is T5's self-attention: V, with a shared relative position bias."""
    return self.description == T5


def read(layer: Any, step: int, place: str) -> Attention:
  """Reads a self-attention layer of a trained model.

  Raises:
    ValueError: PyTorch cannot compute the layer.
  """
  if type(layer) is transformer_layers.SelfAttention:
    return _read_stock(layer, place)
  if not isinstance(layer, attention.SyntheticAttention):
    raise checks.Error(
        f"{place} is {type(layer).__name__}, but only V, R, Fix, FR, T, D, FD, Pattern "
        "and their mixtures can be exported; export a SavedModel instead, see "
        "docs/serving.md.")
  parts = layer.mixture.synthesizers
  unknown = [functions.part_name(part) for part in parts
             if functions.part_name(part) not in DEFAULTS]
  if unknown:
    raise checks.Error(
        f"{place} has the synthesizing function {unknown[0]!r}, which "
        "modeling_synthesizer.py lacks; export a SavedModel instead, see "
        "docs/serving.md.")
  final, kept = _final(layer.mixture, step)
  described = [_describe(part) for part in parts]
  description: dict[str, Any] = {
      "synthesizers": described if kept is None else [described[i] for i in kept]}
  if len(description["synthesizers"]) > 1 and layer.mixture.weights != "per_head":
    description["weights"] = layer.mixture.weights
  description["relative_bias"] = layer.relative_position_bias.kind
  if not layer.softmax:
    description["softmax"] = False
  sizes = layer.heads
  return Attention(
      type(layer).__name__, description, sizes.num_heads, sizes.key_value_size,
      layer.relative_position_bias.num_buckets, sizes.dropout_rate, final, kept,
      described)


def _read_stock(layer, place):
  if not cross_attention.is_plain(layer) or any(
      getattr(layer, option) for option in _OPTIONS):
    raise checks.Error(f"{place} is SelfAttention with options that T5 does not have; "
                       "such a model cannot be exported.")
  kind = layer.relative_attention_type
  if kind not in (None, "bias", SHARED):
    raise checks.Error(f"`SelfAttention.relative_attention_type` is {kind!r}, but only "
                       "None, 'bias' and 'bias_shared' can be exported.")
  return Attention(
      "SelfAttention", {**T5, "relative_bias": kind}, layer.num_heads,
      layer.key_value_size, layer.relative_attention_num_buckets, layer.dropout_rate)


def _describe(part):
  name = functions.part_name(part)
  described: dict[str, Any] = {"name": name}
  for parameter, default in DEFAULTS[name].items():
    value = getattr(part, parameter)
    if value or default:  # What is off is left out.
      described[parameter] = list(value) if isinstance(value, tuple) else value
  return described


def _final(mixture, step):
  """Returns ((final weights, progress to them), parts with a weight), or twice None."""
  if mixture.final_weights is None:
    return None, None
  first, last = mixture.annealing_steps
  progress = min(max((step - first) / (last - first), 0.0), 1.0)
  final = mixture.final_weights
  kept = tuple(i for i, weight in enumerate(final) if weight or progress < 1)
  return (final, progress), kept


def variables(layer: Attention, d_model: int, in_decoder: bool,
              has_bias: bool) -> Iterator[Weight]:
  """Yields all variables of a layer, with names from the layer's scope or module on.

  Args:
    layer: the description of the layer.
    d_model: the size of a token.
    in_decoder: whether the layer is in a decoder.
    has_bias: whether the layer holds a table of relative position biases.
  """
  parts, matrix = layer.description["synthesizers"], (d_model, layer.heads * layer.d_kv)
  trained = layer.parts or parts
  shared = _share_query(trained)
  own = [_part_variables(part, layer, matrix, in_decoder, shared) for part in trained]
  # As in `Mixture`: if parts have a variable name in common, each has its own scope.
  count = collections.Counter(name for variables in own for name, *_ in variables)
  for i, number in enumerate(range(len(parts)) if layer.kept is None else layer.kept):
    clashes = any(count[name] > 1 for name, *_ in own[number])
    for name, shape, projects in own[number]:
      yield Weight(
          f"part_{number}/{name}" if clashes else name,
          f"synthesizers.{i}.{name}{'.weight' if projects else ''}", shape, projects)
    if shared and not _share_query(parts) and parts[i]["name"] == "V":
      yield Weight("q", f"synthesizers.{i}.q.weight", matrix)
  if _share_query(parts):
    yield Weight("q", "q.weight", matrix)
  yield Weight("v", "v.weight", matrix)
  yield Weight("o", "o.weight", matrix[::-1])
  weights = layer.description.get("weights", "per_head")
  if len(parts) > 1 and weights != "sum":
    heads = (layer.heads,) if weights == "per_head" else ()
    yield _alpha(layer, heads, len(parts))
  if has_bias:
    yield Weight("relative_attention_bias", "relative_attention_bias.weight",
                 (layer.heads, layer.buckets))


def _share_query(parts):
  return any(part.get("share_query") for part in parts)


def _alpha(layer, heads, parts):
  if layer.final is None:
    return Weight("alpha", "alpha", (*heads, parts), transposed=False)
  final, progress = layer.final
  return Weight("alpha", "alpha", (*heads, len(final)), False,
                functools.partial(_folded, final, progress, layer.kept),
                (*heads, parts))


def _folded(final, progress, kept, alpha):
  """Logits whose softmax is the annealed weights."""
  weights = np.exp(alpha - alpha.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  annealed = weights * (1 - progress) + np.asarray(final) * progress
  return 1 + np.log(annealed[..., list(kept)]).astype(np.float32)


def _part_variables(part, layer, matrix, in_decoder, shared):
  """Returns a list of (name, shape, whether it is a projection) of a part."""
  heads, d_kv = layer.heads, layer.d_kv
  size = part.get("tile_length") or part.get("max_length")
  after = part.get("tile_length") or (size or 1) - 1
  own_query = [] if shared else [("q", matrix, True)]
  hidden = [] if part.get("share_query") else [("W1", matrix, True)]
  per_head = () if part.get("share_heads") else (heads,)
  biases = [("b1", (heads, d_kv), False), ("b2", (heads, size), False)]
  return {
      "V": [*own_query, ("k", matrix, True)],
      "R": [("R", (heads, size, size), False)],
      "Fix": [("R", (heads, size, size), False)],
      "FR": [(name, (heads, size, part.get("rank")), False) for name in ("R1", "R2")],
      "T": [("T", (heads, size), False)] + (
          [("T_after", (heads, after), False)] if after and not in_decoder else []),
      "D": [*hidden, ("W2", (*per_head, d_kv, size), False),
            *(biases if part.get("use_bias") else [])],
      "FD": [("W1", matrix, True), ("WA", (heads, d_kv, part.get("a")), False),
             ("WB", (heads, d_kv, part.get("b")), False)],
      "Pattern": []}[part["name"]]


def holds_bias(stack: Sequence[Attention]) -> list[bool]:
  """Returns which layers of a stack hold a table of relative position biases."""
  kinds = [layer.description.get("relative_bias") for layer in stack]
  return [kind == "bias" or kind == SHARED and SHARED not in kinds[:i]
          for i, kind in enumerate(kinds)]


def read_config(settings: dict[str, Any], counts: dict[str, int]) -> dict[
    tuple[str, int], Attention]:
  """Returns the self-attention of each block of an imported model.

  Raises:
    ValueError: a description is not one that can be imported.
  """
  blocks = {}
  scope = ("SyntheticAttention" if settings["model_type"] == SYNTHESIZER else
           "SelfAttention")
  for stack, count in counts.items():
    key = f"{stack}_attention"
    described = settings.get(key, T5)
    if not isinstance(described, list):
      described = [described] * count
    if len(described) != count:
      raise checks.Error(
          f"config.json has {key} for {len(described)} blocks, but the stack has "
          f"{count}; bring the file back.")
    for block, layer in enumerate(described):
      blocks[stack, block] = _read_description(key, layer, settings, scope)
  return blocks


def _read_description(key, described, settings, scope):
  if isinstance(described, str):
    described = {"synthesizers": [{"name": name} for name in described.split("+")],
                 "relative_bias": SHARED}
  described = copy.deepcopy(described)
  for part in described.get("synthesizers", [{}]):
    default = DEFAULTS.get(part.get("name"))
    if default is None or set(part) - {"name", *default}:
      raise checks.Error(f"config.json has {part!r} in {key}, which is not known here; "
                         "bring the file back, or import it with the synthesizer_mtf "
                         "that exported it.")
    part.update({**default, **part})
  return Attention(
      scope, described,
      described.pop("num_heads", settings["num_heads"]),
      described.pop("d_kv", settings["d_kv"]),
      settings.get("relative_attention_num_buckets", 32),
      described.pop("dropout_rate", settings.get("dropout_rate", 0.1)))
