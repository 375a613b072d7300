"""T5 with synthesized self-attention (Tay et al., arXiv:2005.00743), in PyTorch.

This file needs PyTorch and Transformers (4.57 or 5), and nothing else. It is
Transformers' T5, in which `SynthesizerAttention` takes the place of `T5Attention` in
self-attention alone. The rest of a model, its cross-attention too, stays T5's. Logits
of query i and key j, where x_i is the i-th token and N is `max_length`:

  V        q_i . k_j                                     DotProduct
  R, Fix   R[i, j], learned or not                       Random, FixedRandom
  FR       R1[i] . R2[j]                                 FactorizedRandom
  T        T[i - j], or T_after[j - i - 1] if j > i      Toeplitz
  D        (relu(x_i W1) W2)[j]                          Dense
  FD       (relu(x_i W1) WA)[j // b] (relu(x_i W1) WB)[j mod b]   FactorizedDense
  Pattern  log P[i, j], written by hand                  Pattern

A layer mixes the logits of its parts, sum_p alpha_p S_p; alpha is a softmax over the
parts, for each head. It masks them, and a softmax weighs the values x W_v.

Shapes have these names: batch, heads, length (queries), memory_length (keys), d_model,
d_kv. A dimension of size 1 stands for a tensor that all examples share.

What differs from T5 in Transformers:

* Dropout of attention drops a key for all queries, as in Mesh TensorFlow's T5. So it
  applies to the values.
* Positions count from the first token of a row, so padding may be on either side.
* `segment_ids` and `decoder_segment_ids` <int>[batch, length] say which tokens of
  packed rows belong together: 0 is padding. Positions then count from the first token
  of a segment, and no segment attends to another.
"""

import copy
import functools
import inspect
import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
import transformers
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.t5 import modeling_t5

from .configuration_synthesizer import resized_attention
from .configuration_synthesizer import SynthesizerConfig

_MAJOR, _MINOR = map(int, transformers.__version__.split(".")[:2])
if not (4, 57) <= (_MAJOR, _MINOR) < (6, 0):
  raise ImportError(
      "modeling_synthesizer.py was written for Transformers 4.57 and 5, but this is "
      f"{transformers.__version__}; install one of those, or export the model again "
      "with a newer synthesizer_mtf.")


class Positions(NamedTuple):
  """The positions of a call's queries and keys.

  Attributes:
    query: <int>[batch or 1, length]
    key: <int>[batch or 1, memory_length]
    first: the position of the first query, if all examples share the positions and keys
      begin at 0, so that tables need no gather; else None.
    count: <int>[batch or 1, length or 1], how many tokens each query may see at most:
      those of its segment, or up to itself in a decoder.
  """
  query: torch.Tensor
  key: torch.Tensor
  first: int | None
  count: torch.Tensor

  def for_queries(self, tile: int | None) -> slice | torch.Tensor:
    """Which rows of a table the queries read."""
    if self.first is None or tile:
      return self.query % tile if tile else self.query
    return slice(self.first, self.first + self.query.shape[-1])

  def for_keys(self, tile: int | None) -> slice | torch.Tensor:
    """Which columns of a table the keys read."""
    if self.first is None or tile:
      return self.key % tile if tile else self.key
    return slice(self.key.shape[-1])


class Product(NamedTuple):
  """Logits that are inner products.

  Attributes:
    query: <float>[batch or 1, heads, length, channels]
    key: <float>[batch or 1, heads, memory_length, channels]
  """
  query: torch.Tensor
  key: torch.Tensor

  def scaled(self, scale: torch.Tensor) -> "Product":
    """These logits times `scale` [heads or 1, 1, 1], on the smaller side."""
    if self.key.shape[0] < self.query.shape[0]:
      return self._replace(key=self.key * scale.to(self.key.dtype))
    return self._replace(query=self.query * scale.to(self.query.dtype))


class Table(NamedTuple):
  """Logits for each pair of query and key.

  Attributes:
    values: <float>[batch or 1, heads, length, memory_length]
  """
  values: torch.Tensor

  def scaled(self, scale: torch.Tensor) -> "Table":
    """These logits times `scale` [heads or 1, 1, 1]."""
    return Table(self.values * scale.to(self.values.dtype))


def entries(table: torch.Tensor, index: slice | torch.Tensor) -> torch.Tensor:
  """[batch or 1, heads, n, ...]: entries of `table` [heads, positions, ...]."""
  if isinstance(index, slice):
    return table[None, :, index]
  return table[:, index].movedim(1, 0)


def interpolated(table: torch.Tensor, dim: int, size: int) -> torch.Tensor:
  """A table of `size` entries along `dim`, linearly between those of `table`.

  The first and the last entry stay first and last.
  """
  rows = table.float().movedim(dim, -1)
  new = functional.interpolate(rows.flatten(0, -2)[None], size, mode="linear",
                               align_corners=True)[0]
  return new.unflatten(0, rows.shape[:-1]).movedim(-1, dim).to(table.dtype)


class Projection(nn.Linear):
  """A matrix without bias; `std` is the standard deviation of its initial weights."""

  def __init__(self, inputs: int, outputs: int, std: float):
    self.std = std
    super().__init__(inputs, outputs, bias=False)

  def reset_parameters(self) -> None:
    nn.init.normal_(self.weight, std=self.std)


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
  """[batch, heads, length, d_kv], of x [batch, length, heads * d_kv]."""
  return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Synthesizer(nn.Module):
  """Base class: makes the logits of one part of a mixture."""

  def __init__(self, config: SynthesizerConfig):
    super().__init__()
    self.heads, self.d_kv, self.d_model = config.num_heads, config.d_kv, config.d_model

  def projection(self, std: float | None = None) -> Projection:
    """A matrix from tokens to all heads."""
    return Projection(self.d_model, self.heads * self.d_kv, std or self.d_model**-0.5)

  def reset_parameters(self) -> None:
    """Initializes the tables; projections do it themselves."""

  def forward(self, x: torch.Tensor, positions: Positions,
              query: torch.Tensor | None, key: torch.Tensor | None) -> Product | Table:
    """Makes the logits.

    Args:
      x: <float>[batch, length, d_model]
      positions: of the queries and keys.
      query: <float>[batch, heads, length, d_kv], if V and D share `q`.
      key: <float>[batch, heads, memory_length, d_kv], the keys of V.
    """
    raise NotImplementedError


class DotProduct(Synthesizer):
  """V: q_i . k_j. As in T5, the initial q includes 1/sqrt(d_kv)."""

  def __init__(self, config, share_query=False):
    super().__init__(config)
    if not share_query:
      self.q = self.projection((self.d_model * self.d_kv)**-0.5)
    self.k = self.projection()

  def new_key(self, x: torch.Tensor) -> torch.Tensor:
    """The keys of new tokens, [batch, heads, length, d_kv]."""
    return split_heads(self.k(x), self.heads)

  def forward(self, x, positions, query, key):
    return Product(split_heads(self.q(x), self.heads) if query is None else query, key)


class WithTables(Synthesizer):
  """Base class of parts whose tables have an entry for each position.

  Attributes:
    POSITIONS: the dimension of the positions in each table, by the table's name.
  """

  POSITIONS: dict[str, int] = {}

  def __init__(self, config, max_length=512, tile_length=None):
    super().__init__(config)
    self.max_length, self.tile = max_length, tile_length
    self.size = tile_length or max_length

  def check(self, positions: Positions) -> None:
    """Raises a ValueError if the sequences are longer than the tables."""
    length = positions.key.shape[-1]
    if length > self.max_length and not self.tile:
      raise ValueError(
          f"the sequences, or the slots of a static cache, have {length} tokens, but "
          f"this attention was trained with max_length {self.max_length}; cut them, as "
          f"by tokenizer(..., truncation=True, max_length={self.max_length}), generate "
          f"fewer tokens, or lengthen its tables by resize({length}).")

  def table(self, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape))

  def resize(self, max_length: int) -> None:
    """Interpolates the tables linearly in the position; tiles stay as they are."""
    if not self.tile:
      for name, values in self._resized(max_length).items():
        old = getattr(self, name, None)
        learns = old.requires_grad if isinstance(old, nn.Parameter) else True
        setattr(self, name, nn.Parameter(values.detach(), requires_grad=learns))
      self.size = max_length
    self.max_length = max_length

  def _resized(self, max_length):
    """The new tables, by their names."""
    return {name: interpolated(getattr(self, name), axis, max_length)
            for name, axis in self.POSITIONS.items() if hasattr(self, name)}


class Random(WithTables):
  """R: R[i, j], learned."""

  trainable = True
  POSITIONS = {"R": -1}

  def __init__(self, config, max_length=512, tile_length=None):
    super().__init__(config, max_length, tile_length)
    self.R = nn.Parameter(torch.empty(self.heads, self.size, self.size),
                          requires_grad=self.trainable)

  def reset_parameters(self):
    nn.init.normal_(self.R)

  def _resized(self, max_length):
    return {"R": interpolated(super()._resized(max_length)["R"], -2, max_length)}

  def forward(self, x, positions, query, key):
    self.check(positions)
    rows, columns = positions.for_queries(self.tile), positions.for_keys(self.tile)
    if isinstance(rows, slice):
      return Table(self.R[None, :, rows, columns])
    return Table(self.R[:, rows[:, :, None], columns[:, None, :]].movedim(1, 0))


class FixedRandom(Random):
  """Fix: R[i, j], never trained."""

  trainable = False


class FactorizedRandom(WithTables):
  """FR: R1[i] . R2[j]."""

  POSITIONS = {"R1": -2, "R2": -2}

  def __init__(self, config, max_length=512, tile_length=None, rank=8):
    super().__init__(config, max_length, tile_length)
    self.R1 = self.table(self.heads, self.size, rank)
    self.R2 = self.table(self.heads, self.size, rank)

  def reset_parameters(self):
    for factor in (self.R1, self.R2):
      nn.init.normal_(factor, std=factor.shape[-1]**-0.25)

  def forward(self, x, positions, query, key):
    self.check(positions)
    return Product(entries(self.R1, positions.for_queries(self.tile)),
                   entries(self.R2, positions.for_keys(self.tile)))


class Toeplitz(WithTables):
  """T: T[i - j] for keys before the query, T_after[j - i - 1] for those after it."""

  POSITIONS = {"T": -1}

  def __init__(self, config, max_length=512, tile_length=None):
    super().__init__(config, max_length, tile_length)
    self.is_decoder = config.is_decoder
    self.T = self.table(self.heads, self.size)
    after = tile_length or max_length - 1
    if not config.is_decoder and after:
      self.T_after = self.table(self.heads, after)

  def reset_parameters(self):
    for table in self.parameters():
      nn.init.normal_(table)

  def _resized(self, max_length):
    if self.is_decoder:
      return super()._resized(max_length)
    after = getattr(self, "T_after", self.T[:, :0])
    offsets = interpolated(torch.cat([self.T.flip(-1), after], -1), -1,
                           2 * max_length - 1)
    return {"T": offsets[:, :max_length].flip(-1), "T_after": offsets[:, max_length:]}

  def forward(self, x, positions, query, key):
    self.check(positions)
    after = getattr(self, "T_after", None)
    if positions.first is not None and not self.tile and not (
        torch.compiler.is_exporting()):  # ONNX has no windows of any length.
      return Table(self._windows(positions, after))
    offset = positions.key[:, None, :] - positions.query[:, :, None]
    values = self.T[:, (-offset).clamp(min=0, max=None if self.tile else self.size - 1)
                    % self.size]
    if after is not None:
      later = after[:, (offset - 1).clamp(min=0) % after.shape[-1]]
      values = torch.where(offset > 0, later, values)
    return Table(values.movedim(1, 0))

  def _windows(self, positions, after):
    """Row i of the logits is a window of all offsets, which begins i to the left."""
    length, memory_length = positions.query.shape[-1], positions.key.shape[-1]
    if after is None:  # The mask hides later keys.
      after = self.T.new_zeros(self.heads, self.size - 1)
    windows = torch.cat([self.T.flip(-1), after], -1).unfold(-1, memory_length, 1)
    last = self.size - 1 - positions.first
    return windows[None, :, last - length + 1:last + 1].flip(2)


class Dense(WithTables):
  """D: (relu(x_i W1 + b1) W2 + b2)[j]; the biases are optional."""

  POSITIONS = {"W2": -1, "b2": -1}

  def __init__(self, config, max_length=512, tile_length=None, share_heads=False,
               share_query=False, use_bias=False):
    super().__init__(config, max_length, tile_length)
    if not share_query:
      self.W1 = self.projection()
    heads = () if share_heads else (self.heads,)
    self.W2 = self.table(*heads, self.d_kv, self.size)
    if use_bias:
      self.b1 = self.table(self.heads, self.d_kv)
      self.b2 = self.table(self.heads, self.size)

  def reset_parameters(self):
    nn.init.normal_(self.W2, std=self.d_kv**-0.5)
    if hasattr(self, "b1"):
      nn.init.zeros_(self.b1)
      nn.init.zeros_(self.b2)

  def forward(self, x, positions, query, key):
    self.check(positions)
    hidden = split_heads(self.W1(x), self.heads) if query is None else query
    columns = self.W2.transpose(-2, -1).expand(self.heads, -1, -1)
    if hasattr(self, "b1"):
      hidden = hidden + self.b1[:, None]
    hidden = functional.relu(hidden)
    if hasattr(self, "b2"):  # One more channel, which is always 1.
      hidden = functional.pad(hidden, (0, 1), value=1)
      columns = torch.cat([columns, self.b2[..., None]], -1)
    return Product(hidden, entries(columns, positions.for_keys(self.tile)))


class FactorizedDense(WithTables):
  """FD: A_i[j // b] B_i[j mod b] with A = relu(x W1) WA and B = relu(x W1) WB."""

  def __init__(self, config, max_length=512, tile_length=None, a=1, b=1):
    super().__init__(config, max_length, tile_length)
    if a * b != self.size:
      raise ValueError(
          f"FD has a = {a} and b = {b}, but their product must be its "
          f"{'tile_length' if tile_length else 'max_length'}, {self.size}; give it "
          "three that fit, as {'name': 'FD', 'max_length': 512, 'a': 16, 'b': 32}.")
    self.W1 = self.projection()
    self.b = b
    self.WA = self.table(self.heads, self.d_kv, a)
    self.WB = self.table(self.heads, self.d_kv, b)

  def reset_parameters(self):
    for table in (self.WA, self.WB):
      nn.init.normal_(table, std=self.d_kv**-0.5)

  def _resized(self, max_length):
    # WB repeats after b positions, and WA says which repetition it is.
    return {"WA": interpolated(self.WA, -1, max_length // self.b)}

  def forward(self, x, positions, query, key):
    self.check(positions)
    hidden = functional.relu(split_heads(self.W1(x), self.heads))
    products = ((hidden @ self.WA)[..., None] * (hidden @ self.WB)[..., None, :]
                ).flatten(-2)
    columns = positions.for_keys(self.tile)
    if isinstance(columns, slice):
      return Table(products[..., columns])
    columns = columns[:, None, None, :].expand(*products.shape[:-1], -1)
    return Table(products.gather(-1, columns))


class Pattern(Synthesizer):
  """Pattern: the logarithm of weights written by hand (arXiv:2002.10260).

  A pattern is (first, last, slope): the keys from `first` to `last`, as offsets from
  the query and cut at the borders of the segment. Slope 1: their weights grow from
  first to last as 1, 8, 27, ...; -1: from last to first; 0: they are equal.
  """

  FAR = 1 << 20  # longer than any sequence
  PATTERNS = {
      "current": (0, 0, 0), "previous": (-1, -1, 0), "next": (1, 1, 0),
      "left_context": (-FAR, -2, 1), "right_context": (2, FAR, -1),
      "end": (-FAR, FAR, 1), "start": (-FAR, FAR, -1), "uniform": (-FAR, FAR, 0)}
  LOG_OF_ZERO = math.log(1e-13)

  def __init__(self, config, patterns=tuple(PATTERNS)[:-1]):
    super().__init__(config)
    self.patterns = [self.PATTERNS[patterns[head % len(patterns)]]
                     for head in range(self.heads)]

  def forward(self, x, positions, query, key):
    # [heads, 1, 1] each
    first, last, slope = x.new_tensor(
        self.patterns, dtype=torch.long).T[..., None, None]
    end = positions.count[:, None, :, None] - 1
    query = positions.query[:, None, :, None]
    first, last = ((query + offset).clamp(min=0).minimum(end)
                   for offset in (first, last))
    key = positions.key[:, None, None, :]
    rank = torch.where(slope == 1, key - first + 1, last - key + 1).clamp(min=1)
    count = (last - first + 1).float()
    # The sum of the first n cubes is (n (n + 1) / 2)^2.
    total = torch.where(slope == 0, count, (count * (count + 1) / 2)**2)
    weights = 3 * slope.abs() * rank.float().log() - total.log()
    inside = (key >= first) & (key <= last)
    weights = weights.masked_fill(~inside, self.LOG_OF_ZERO)
    return Table(weights.clamp(min=self.LOG_OF_ZERO).to(x.dtype))


SYNTHESIZERS = {
    "V": DotProduct, "R": Random, "Fix": FixedRandom, "FR": FactorizedRandom,
    "T": Toeplitz, "D": Dense, "FD": FactorizedDense, "Pattern": Pattern}


class SynthesizerAttention(nn.Module):
  """Self-attention with synthesized logits, in the place of `T5Attention`.

  It also works alone, with a mask [batch, length] or without one.
  """

  def __init__(self, config: SynthesizerConfig, attention: dict, layer_idx: int,
               has_relative_bias: bool):
    """Declares the layer.

    Args:
      config: the configuration of its stack.
      attention: as configuration_synthesizer.py describes.
      layer_idx: the number of the block.
      has_relative_bias: whether the layer has a table of relative position biases.
    """
    super().__init__()
    config = _with_own_sizes(config, attention)
    heads, d_kv = config.num_heads, config.d_kv
    parts = [dict(part) for part in attention["synthesizers"]]
    share = any(part.get("share_query") for part in parts)
    for part in parts:
      if share and part["name"] == "V":
        part["share_query"] = True
    self.description = attention
    self.heads, self.layer_idx, self.is_decoder = heads, layer_idx, config.is_decoder
    self.dropout = config.dropout_rate
    self.softmax = attention.get("softmax", True)
    self.relative_bias = attention.get("relative_bias")
    self.buckets = config.relative_attention_num_buckets
    self.distance = config.relative_attention_max_distance
    self.synthesizers = nn.ModuleList(_part(config, **part) for part in parts)
    if share:
      self.q = Projection(config.d_model, heads * d_kv, (config.d_model * d_kv)**-0.5)
    self.v = Projection(config.d_model, heads * d_kv, config.d_model**-0.5)
    self.o = Projection(heads * d_kv, config.d_model, (heads * d_kv)**-0.5)
    weights = attention.get("weights", "per_head")
    if len(parts) > 1 and weights != "sum":
      rows = (heads,) if weights == "per_head" else ()
      self.alpha = nn.Parameter(torch.empty(*rows, len(parts)))
    if has_relative_bias:
      self.relative_attention_bias = nn.Embedding(self.buckets, heads)
    self.gradient_checkpointing = False  # T5 sets it, and the block does the rest.
    for module in (*self.synthesizers, self):
      module.reset_parameters()

  def reset_parameters(self) -> None:
    if hasattr(self, "alpha"):
      nn.init.ones_(self.alpha)  # Equal weights.
    if hasattr(self, "relative_attention_bias"):
      nn.init.normal_(self.relative_attention_bias.weight,
                      std=self.v.in_features**-0.5)

  def resize(self, max_length: int) -> None:
    """Makes tables of positions longer or shorter, linearly in the position.

    Tables of R, Fix, FR, T and D are interpolated between their entries, the first and
    last of which stay; FD keeps b, and its WA is. V, Pattern and tiles stay. The tables
    are new parameters: make the optimizer afterwards.

    Args:
      max_length: the new length.

    Raises:
      ValueError: it is not an integer of at least 2, or no multiple of FD's b.
    """
    # It refuses a length before a table changes.
    self.description = resized_attention(self.description, max_length)
    for part in self.synthesizers:
      if isinstance(part, WithTables):
        part.resize(max_length)

  def forward(self, hidden_states, mask=None, position_bias=None,
              layer_head_mask=None, output_attentions=False, cache_position=None,
              **kwargs):
    """Takes the place of `T5Attention.forward`.

    Args:
      hidden_states: <float>[batch, length, d_model]
      mask: as `SynthesizerStack` makes it; or of any dtype [batch, memory_length], 0
        for padding, on either side; or None without padding.
      position_bias: <float>[1, heads, length, memory_length], the relative position
        bias that an earlier layer has computed; or None.
      layer_head_mask: <float>[1, heads, 1, 1] or None.
      output_attentions: whether to return the weights.
      cache_position: <int>[length] or None; the indices of the queries.
      **kwargs: `past_key_values`, and what T5 hands on.

    Returns:
      what `T5Attention` returns: the output, the position bias and the weights.
    """
    mask = self._as_of_stack(mask, hidden_states)
    value = split_heads(self.v(hidden_states), self.heads)
    if self.training and self.dropout:
      value = value * functional.dropout(torch.ones_like(value[..., :1]), self.dropout)
    dots = [part for part in self.synthesizers if isinstance(part, DotProduct)]
    key = [part.new_key(hidden_states) for part in dots]
    first, key, value = self._remember(
        kwargs.get("past_key_values"), key, value, cache_position)
    positions, seen = self._positions(mask, first, hidden_states.shape[1], value)
    logits = self._logits(hidden_states, positions, key)
    if self.relative_bias:
      bias, position_bias = self._relative_bias(position_bias, first, positions)
      logits.append(Table(bias))
    mean, weights = attend(logits, value, seen, self.softmax, output_attentions)
    if layer_head_mask is not None:
      mean = mean * layer_head_mask
    output = self.o(mean.transpose(1, 2).flatten(2))
    if _MAJOR >= 5 or output_attentions:
      return output, position_bias, weights
    return output, position_bias

  def _as_of_stack(self, mask, x):
    """A mask as `SynthesizerStack` makes it, for a layer that is used alone."""
    if mask is not None and mask.dim() != 2:
      return mask
    if self.is_decoder:
      return _decoder_mask(mask, x, x.dtype)
    if mask is None:
      return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=x.device)
    # Padding may be on either side.
    return mask.bool()[:, None, None].expand(-1, -1, x.shape[1], -1)

  def _remember(self, cache, key, value, cache_position):
    """Returns the index of the first query, and the keys and values of all tokens."""
    cache = getattr(cache, "self_attention_cache", cache)
    if cache is None:
      return 0, key, value
    first = cache.get_seq_length(self.layer_idx)
    if isinstance(first, torch.Tensor):
      first = first.clone() if cache_position is None else cache_position[0]
    length, sizes = value.shape[-2], (len(key) * value.shape[-1] or 1, value.shape[-1])
    # The cache holds the keys of all parts as one. Without V it needs no keys, but
    # counts tokens by them.
    joined = torch.cat(key, -1) if key else torch.ones_like(value[..., :1])
    if not isinstance(cache, transformers.DynamicCache):
      # Static caches have one size for keys and values.
      joined, value = (functional.pad(x, (0, max(sizes) - x.shape[-1]))
                       for x in (joined, value))
    joined, value = cache.update(joined, value, self.layer_idx,
                                 {"cache_position": cache_position})
    if isinstance(first, int) and value.shape[-2] < first + length:
      raise ValueError(
          f"{type(cache).__name__} keeps {value.shape[-2]} of {first + length} tokens, "
          "but synthesized attention sees all; use a cache without a sliding window.")
    joined = joined[..., :sizes[0]]
    return (first, joined.chunk(len(key), -1) if len(key) > 1 else [joined] * len(key),
            value[..., :sizes[1]])

  def _positions(self, mask, first, length, value):
    """Returns the `Positions`, and which keys a query may see.

    The latter is <bool>[batch or 1, 1, length or 1, memory_length], or None for all.
    """
    memory_length, device = value.shape[-2], value.device
    query = (torch.arange(length, device=device) + first)[None]
    key = torch.arange(memory_length, device=device)[None]
    if self.is_decoder:
      return self._decoder_positions(mask, first, query, key)
    seen = mask if mask.dtype == torch.bool else mask == 0
    seen = seen.reshape(seen.shape[0], 1, -1, seen.shape[-1])
    if seen.shape[-1] < memory_length:  # No token is padding.
      return Positions(query, key, first, query.new_full((1, 1), memory_length)), None
    end = ((key + 1)[:, None] * seen[:, 0]).amax(-1)
    if seen.shape[2] == 1:  # Padding comes last.
      return Positions(query, key, first, end.clamp(min=1)), seen
    start = seen[:, 0].int().argmax(-1)  # The first token of each query's segment.
    return Positions((query - start).clamp(min=0), (key - start).clamp(min=0), None,
                     (end - start).clamp(min=1)), seen

  def _decoder_positions(self, mask, first, query, key):
    """As `_positions`; a query sees tokens up to itself, and no slot that is empty."""
    before = key[:, None] <= query[:, :, None]
    if mask.is_floating_point():  # No token is padding.
      shared = None if isinstance(first, torch.Tensor) else first
      seen = None if shared == key.shape[-1] - 1 else before[:, None]
      return Positions(query, key, shared, query + 1), seen
    # T5's masks may end before the tokens, which then are no padding.
    tokens = functional.pad(mask[:, 0, 0], (0, max(key.shape[-1] - mask.shape[-1], 0)),
                            value=mask.dtype == torch.bool)[:, :key.shape[-1]]
    seen = before & (tokens != 0)[:, None]
    if mask.dtype == torch.bool:
      start = of_query = tokens.int().argmax(-1, keepdim=True)
    else:  # Segment ids.
      begins = tokens != functional.pad(tokens, (1, 0))[:, :-1]
      start = (key * begins).cummax(-1).values
      of_query = start[:, query[0]]
      seen = seen & (tokens[:, None] == tokens[:, query[0], None])
    place = (query - of_query).clamp(min=0)
    return Positions(place, (key - start).clamp(min=0), None, place + 1), seen[:, None]

  def _logits(self, x, positions, keys):
    """Returns the logits of all parts, times their weights alpha."""
    query = split_heads(self.q(x), self.heads) if hasattr(self, "q") else None
    keys = iter(keys)
    logits = []
    for part in self.synthesizers:
      key = next(keys) if isinstance(part, DotProduct) else None
      logits.append(part(x, positions, None if hasattr(part, "W1") else query, key))
    if hasattr(self, "alpha"):
      alpha = self.alpha.float().softmax(-1).unbind(-1)
      logits = [term.scaled(weight[..., None, None])
                for term, weight in zip(logits, alpha)]
    return logits

  def _relative_bias(self, position_bias, first, positions):
    """Returns the bias of this layer, and the one for the next layers.

    In a segment, distances of indices are distances of positions.
    """
    if position_bias is not None and self.relative_bias == "bias_shared":
      return position_bias, position_bias
    device = positions.query.device
    query = torch.arange(positions.query.shape[-1], device=device) + first
    key = torch.arange(positions.key.shape[-1], device=device)
    bucket = modeling_t5.T5Attention._relative_position_bucket(
        key - query[:, None], bidirectional=not self.is_decoder,
        num_buckets=self.buckets, max_distance=self.distance)
    bias = self.relative_attention_bias(bucket).permute(2, 0, 1)[None]
    return bias, bias if self.relative_bias == "bias_shared" else position_bias


def _with_own_sizes(config, attention):
  """The configuration with the sizes that a layer has for itself."""
  own = {key: attention[key] for key in ("num_heads", "d_kv", "dropout_rate")
         if key in attention}
  if own:
    config = copy.copy(config)
    for key, value in own.items():
      setattr(config, key, value)
  return config


def _part(config, name, **parameters):
  if name not in SYNTHESIZERS:
    raise ValueError(
        f"config.json names the attention {name!r}, which modeling_synthesizer.py "
        f"lacks; it has {', '.join(SYNTHESIZERS)}.")
  known = [*inspect.signature(SYNTHESIZERS[name]).parameters][1:]
  for parameter in parameters:
    if parameter not in known:
      raise ValueError(f"{name} has the parameter {parameter!r}, which nothing reads; "
                       f"its parameters are {', '.join(known) or 'none'}.")
  return SYNTHESIZERS[name](config, **parameters)


def attend(logits: list[Product | Table], value: torch.Tensor,
           seen: torch.Tensor | None, softmax: bool = True,
           output_weights: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    logits: the terms, which are added.
    value: <float>[batch, heads, memory_length, d_kv]
    seen: <bool>[batch or 1, 1, length or 1, memory_length], or None for all keys.
    softmax: False uses the logits as weights, and 0 for keys that are not seen.
    output_weights: whether to return the weights.

  Returns:
    <float>[batch, heads, length, d_kv]; and the weights
    <float>[batch, heads, length, memory_length], or None.
  """
  products = [term for term in logits if isinstance(term, Product)]
  tables = [term.values for term in logits if isinstance(term, Table)]
  # float16 cannot hold the weights of a row whose padding has much larger logits.
  shared = all(tensor.shape[0] == 1 for term in logits for tensor in term) and (
      seen is None or seen.shape[0] == 1 or
      seen.shape[2] == 1 and value.dtype != torch.float16)
  # In ONNX all that is joined or expanded is copied.
  plain = torch.compiler.is_exporting() and (products or logits[0][0].shape[2] == 1)
  if output_weights or not softmax or plain or not (products or shared):
    weights = _weights(_total(products, tables), seen, softmax).to(value.dtype)
    mean = weights @ value
    return mean, weights.expand(len(value), -1, -1, -1) if output_weights else None
  if shared:
    return _shared_mean(_total(products, tables), value, seen), None
  # A sum of inner products is one inner product of the joined channels. So is padding,
  # which saves a tensor [batch, heads, length, memory_length].
  if seen is not None and seen.shape[2] == 1:
    products.append(_padding_product(products, seen))
    seen = None
  batch = len(value)
  query, key = (torch.cat([side.expand(batch, value.shape[1], -1, -1)
                           for side in sides], -1) for sides in zip(*products))
  bias = sum(tables) if tables else None
  if seen is not None:
    lowest = torch.finfo(query.dtype).min / 2
    bias = (torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, lowest)
            if bias is None else bias.masked_fill(~seen, lowest))
  return functional.scaled_dot_product_attention(
      query, key, value, attn_mask=None if bias is None else bias.to(query.dtype),
      scale=1.0), None


def _padding_product(products, seen):
  """Logits that are very low for keys that are not seen, and 0 for others.

  On GPUs the channels fill up to a multiple of 8, as the fast kernels need.
  """
  query = products[0].query
  channels = sum(term.query.shape[-1] for term in products)
  more = 8 - channels % 8 if query.is_cuda else 1
  low = torch.finfo(query.dtype).min / 2
  key = torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, low)
  ones = query.new_ones(1, 1, query.shape[-2], 1)
  return Product(functional.pad(ones, (0, more - 1)),
                 functional.pad(key.transpose(-1, -2), (0, more - 1)))


def _total(products, tables):
  """The sum of all logits, <float32>."""
  terms = [query.float() @ key.float().transpose(-2, -1) for query, key in products]
  return sum(terms + [table.float() for table in tables])


def _weights(logits, seen, softmax):
  if not softmax:
    return logits if seen is None else logits.masked_fill(~seen, 0)
  if seen is not None:
    logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
  return logits.softmax(-1)


def _shared_mean(logits, value, seen):
  """The mean for logits [1, heads, length, memory_length], which all examples share.

  Their softmax is computed once. Padding then counts as 0 among the values, and the
  weights of the other keys are divided by their sum. A row loses accuracy only if a
  logit of padding exceeds all its other logits by more than 80.
  """
  batch, _, _, d_kv = value.shape
  padded = seen is not None and seen.shape[0] > 1
  weights = _weights(logits, None if padded else seen, True)[0].to(value.dtype)
  if padded:  # The sum of the weights is one more channel.
    keys = seen[:, :, 0, :, None].to(value.dtype)
    value = torch.cat([value * keys, keys.expand(-1, value.shape[1], -1, -1)], -1)
  joined = value.permute(1, 2, 0, 3).flatten(2)  # [heads, memory_length, batch * d_kv]
  mean = (weights @ joined).unflatten(-1, (batch, -1)).permute(2, 0, 1, 3)
  if padded:
    total = mean[..., d_kv:].clamp(min=torch.finfo(mean.dtype).tiny)
    mean = mean[..., :d_kv] / total
  return mean


class _Model:
  """What our models do beside T5's: initialize our layers, and resize them."""

  @classmethod
  def from_pretrained(cls, *args, **kwargs):
    """As Transformers' own; it also explains tables of another length."""
    try:
      return super().from_pretrained(*args, **kwargs)
    except RuntimeError as error:
      if "mismatch" not in str(error):
        raise
      raise ValueError(
          "the weights have other shapes than the configuration says; if it has "
          "another max_length, load the model with its own configuration, and call "
          "model.resize(max_length) then.") from error

  def resize(self, max_length: int) -> None:
    """Makes the tables of all layers longer or shorter; see `SynthesizerAttention`.

    The configuration follows, so `save_pretrained` writes it.
    """
    for module in self.modules():
      if isinstance(module, _Model):
        module.config.resize(max_length)
    for module in self.modules():
      if isinstance(module, SynthesizerAttention):
        module.resize(max_length)

  def _init_weights(self, module):
    if isinstance(module, (Projection, Synthesizer, SynthesizerAttention)):
      module.reset_parameters()
    else:
      super()._init_weights(module)

  def _initialize_weights(self, module, *_):
    # In files beside a model, Transformers 5 would leave out T5's layers, which
    # initialize the weights of their parts.
    super()._initialize_weights(module)


class SynthesizerStack(_Model, modeling_t5.T5Stack):
  """T5's encoder or decoder, with `SynthesizerAttention`.

  It hands masks to the layers in forms whose shapes and dtypes say what is known:

    encoder  without padding  [1, ..., 1, 1]
             with padding     [batch, ..., 1, length]; padding comes last
             packed           [batch, ..., length, length]
    decoder  without padding  <float>[1, 1, 1, 1]
             with padding     <bool>[batch, 1, 1, memory_length]
             packed           <int>[batch, 1, 1, memory_length], segment ids
  """

  config_class = SynthesizerConfig

  def __init__(self, config: SynthesizerConfig):
    super().__init__(config)
    has_shared = False
    for number, (block, attention) in enumerate(
        zip(self.block, config.attention_of(config.is_decoder))):
      kind = attention.get("relative_bias")
      own = kind == "bias" or kind == "bias_shared" and not has_shared
      has_shared = has_shared or kind == "bias_shared"
      block.layer[0].SelfAttention = SynthesizerAttention(
          config, attention, number, own)
    self.post_init()

  def forward(self, input_ids=None, attention_mask=None, encoder_hidden_states=None,
              encoder_attention_mask=None, inputs_embeds=None, past_key_values=None,
              return_dict=None, **kwargs):
    """As in T5, except that a mask <int>[batch, 1, length] holds segment ids."""
    tokens = input_ids if inputs_embeds is None else inputs_embeds
    turned = None
    if not self.is_decoder:
      attention_mask = _checked("attention_mask", attention_mask, tokens)
      if attention_mask is not None and attention_mask.dim() == 2:
        turned = _turn(attention_mask)
        attention_mask = attention_mask.gather(1, turned[0])
        tokens = _gather(tokens, turned[0])
      mask = _encoder_mask(attention_mask, tokens, self.dtype)
    else:
      attention_mask = _checked("decoder_attention_mask", attention_mask)
      encoder_attention_mask = _cross_mask(
          encoder_attention_mask, attention_mask, tokens.shape[1], self.dtype)
      mask = _decoder_mask(attention_mask, tokens, self.dtype)
      past_key_values = _with_cross_attention(past_key_values, encoder_hidden_states)
    outputs = super().forward(
        input_ids=tokens if inputs_embeds is None else None, attention_mask=mask,
        inputs_embeds=None if inputs_embeds is None else tokens,
        encoder_hidden_states=encoder_hidden_states,
        encoder_attention_mask=encoder_attention_mask, past_key_values=past_key_values,
        return_dict=True, **kwargs)
    if turned is not None:
      _turn_back(outputs, turned[1])
    return outputs.to_tuple() if return_dict is False else outputs

  @staticmethod
  def _prepare_4d_causal_attention_mask_with_cache_position(attention_mask, **_):
    """`generate` of Transformers 4 calls this if a cache is static."""
    return attention_mask


def _checked(name, mask, tokens=None):
  """Returns a mask <int>[batch, length] or, with segment ids, [batch, 1, length]."""
  if mask is None:
    return None
  if mask.dim() not in (2, 3) or mask.dim() == 3 and mask.shape[1] != 1:
    raise ValueError(
        f"{name} has the shape {list(mask.shape)}, which does not give the positions "
        "of tokens; give [batch, length], or segment_ids and decoder_segment_ids.")
  if tokens is None:
    return mask
  if mask.shape[-1] != tokens.shape[1]:
    raise ValueError(f"{name} is for {mask.shape[-1]} tokens, but the inputs have "
                     f"{tokens.shape[1]}; give it a column for each.")
  return mask.expand(len(tokens), *mask.shape[1:])


def _with_cross_attention(cache, inputs):
  """A cache of both attentions; T5 would mix them up in a cache of one."""
  if isinstance(cache, (tuple, list)):  # What old versions return.
    return transformers.EncoderDecoderCache(cache)
  if isinstance(cache, transformers.Cache) and not isinstance(
      cache, transformers.EncoderDecoderCache):
    return transformers.EncoderDecoderCache(cache, transformers.DynamicCache())
  cross = getattr(cache, "cross_attention_cache", None)
  if isinstance(cross, transformers.StaticCache) and inputs is not None and (
      cross.max_cache_len != inputs.shape[1]):
    raise ValueError(
        f"the static cache of cross-attention has max_cache_len {cross.max_cache_len}, "
        f"but there are {inputs.shape[1]} inputs; T5 would see its empty slots, so "
        f"give it max_cache_len {inputs.shape[1]}.")
  return cache


def _turn(mask):
  """Returns indices [batch, length] that move padding to the end of a row, and back."""
  length = mask.shape[1]
  start = mask.bool().int().argmax(-1, keepdim=True)
  index = torch.arange(length, device=mask.device)
  there, back = index + start, index - start  # A remainder has no form in ONNX.
  return (torch.where(there < length, there, there - length),
          torch.where(back < 0, back + length, back))


def _gather(x, index, dim=1):
  """Gathers tokens along a dimension; `index` is <int>[batch, length]."""
  shape = [len(x)] + [1] * (x.dim() - 1)
  shape[dim] = -1
  return x.gather(dim, index.view(shape).expand(
      *x.shape[:dim], -1, *x.shape[dim + 1:]))


def _turn_back(outputs, index):
  """Moves padding back to where it was, in all outputs of the encoder."""
  outputs.last_hidden_state = _gather(outputs.last_hidden_state, index)
  if outputs.hidden_states is not None:
    outputs.hidden_states = tuple(_gather(x, index) for x in outputs.hidden_states)
  if outputs.attentions is not None:
    outputs.attentions = tuple(
        _gather(_gather(x, index, 2), index, 3) for x in outputs.attentions)


def _encoder_mask(mask, tokens, dtype):
  if mask is None:
    seen = torch.ones(1, 1, 1, dtype=torch.bool, device=tokens.device)
  elif mask.dim() == 3:  # Segment ids.
    seen = (mask == mask.transpose(1, 2)) & (mask != 0)
  else:
    seen = mask[:, None].bool()
  # Transformers 4 makes what it adds to the logits of this, [batch, 1, 1, ...].
  return seen[:, None] if _MAJOR >= 5 else seen.to(dtype)


def _decoder_mask(mask, tokens, dtype):
  if mask is None:
    return torch.zeros(1, 1, 1, 1, dtype=dtype, device=tokens.device)
  return mask[:, None, None].bool() if mask.dim() == 2 else mask[:, None].long()


def _cross_mask(mask, targets, length, dtype):
  """What each target may see of the inputs, if rows are packed."""
  if mask is None or _checked("attention_mask", mask).dim() == 2:
    return mask
  if targets is None or targets.dim() != 3:
    raise ValueError("segment_ids need decoder_segment_ids beside them; give both.")
  targets = targets[..., -length:]
  seen = (targets.transpose(1, 2) == mask) & (mask != 0)
  if _MAJOR < 5:
    return seen.to(dtype)
  lowest = torch.finfo(dtype).min
  return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, lowest)[:, None]


def _with_parameters(method, *names):
  """Gives a method that takes anything the signature of T5's, and more parameters.

  Transformers reads signatures to learn what a model takes.
  """
  def decorate(function):
    function = functools.wraps(method)(function)
    signature = inspect.signature(method)
    known = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in names]
    rest = [p for p in signature.parameters.values() if p.kind == p.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=known + more + rest)
    return function

  return decorate


class SynthesizerForConditionalGeneration(
    _Model, modeling_t5.T5ForConditionalGeneration):
  """T5's encoder and decoder with an output layer, as `T5ForConditionalGeneration`."""

  config_class = SynthesizerConfig

  @staticmethod
  def create_masks_for_generate(attention_mask=None, **_):
    """`generate` of Transformers 5 calls this if a cache is static."""
    return attention_mask

  def __init__(self, config: SynthesizerConfig):
    # Transformers 5 always ties, but only what `_tied_weights_keys` lists.
    config.tie_word_embeddings = config.is_tied or _MAJOR >= 5
    if not config.is_tied:
      self._tied_weights_keys = _without_head(type(self)._tied_weights_keys)
    super().__init__(config)
    self.encoder = SynthesizerStack(self.encoder.config)
    self.decoder = SynthesizerStack(self.decoder.config)
    self.set_input_embeddings(self.shared)
    self.post_init()

  @_with_parameters(modeling_t5.T5ForConditionalGeneration.forward,
                    "segment_ids", "decoder_segment_ids")
  def forward(self, *args, segment_ids=None, decoder_segment_ids=None, **kwargs):
    if segment_ids is not None:
      kwargs["attention_mask"] = segment_ids[:, None]
    if decoder_segment_ids is not None:
      kwargs["decoder_attention_mask"] = decoder_segment_ids[:, None]
      labels = kwargs.get("labels")
      if labels is not None and kwargs.get("decoder_input_ids") is None:
        before = self._shift_right(labels)
        first = decoder_segment_ids != functional.pad(decoder_segment_ids, (1, -1))
        kwargs["decoder_input_ids"] = before.masked_fill(
            first, self.config.decoder_start_token_id)
    return super().forward(*args, **kwargs)


def _without_head(keys):
  """The weights that copy the embedding, if the output layer does not."""
  if isinstance(keys, dict):
    return {name: of for name, of in keys.items() if not name.startswith("lm_head")}
  return [name for name in keys if not name.startswith("lm_head")]


class SynthesizerEncoderModel(_Model, modeling_t5.T5EncoderModel):
  """T5's encoder alone, as `T5EncoderModel`."""

  config_class = SynthesizerConfig

  def __init__(self, config: SynthesizerConfig):
    super().__init__(config)
    self.encoder = SynthesizerStack(self.encoder.config)
    self.set_input_embeddings(self.shared)
    self.post_init()


class SynthesizerForSequenceClassification(SynthesizerEncoderModel):
  """A classifier: an encoder, its mean or first token, and a softmax.

  The output layer has a row for each id of the vocabulary of labels. Class i has the id
  i + 1; id 0 is padding, and the ids after the classes fill up the layer.
  """

  def __init__(self, config: SynthesizerConfig):
    super().__init__(config)
    sizes = [config.d_model, *getattr(config, "classifier_hidden_sizes", [])]
    self.hidden = nn.ModuleList(
        Projection(a, b, a**-0.5) for a, b in zip(sizes, sizes[1:]))
    self.classifier = Projection(
        sizes[-1], getattr(config, "classifier_rows", config.num_labels + 1),
        sizes[-1]**-0.5)
    self.post_init()

  def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None,
              labels=None, return_dict=None, **kwargs):
    """Returns the logits of the classes, and the loss if there are labels.

    Args:
      input_ids: <int>[batch, length]
      attention_mask: <int>[batch, length], 0 for padding.
      inputs_embeds: <float>[batch, length, d_model], instead of input_ids.
      labels: <int>[batch], the classes.
      return_dict: False returns a tuple.
      **kwargs: as for `T5EncoderModel`.
    """
    outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask,
                           inputs_embeds=inputs_embeds, **kwargs)
    x = outputs.last_hidden_state
    seen = (torch.ones_like(x[..., 0]) if attention_mask is None
            else attention_mask.bool().to(x.dtype))
    if getattr(self.config, "classifier_pooling", "mean") == "first":
      pooled = x.take_along_dim(seen.argmax(-1)[:, None, None], 1)[:, 0]
    else:
      pooled = (seen[:, None] @ x)[:, 0] / seen.sum(-1, keepdim=True).clamp(min=1)
    for layer in self.hidden:
      pooled = functional.relu(layer(pooled))
    logits = self.classifier(pooled)[:, 1:1 + self.config.num_labels]
    loss = None if labels is None else functional.cross_entropy(logits.float(), labels)
    output = SequenceClassifierOutput(
        loss=loss, logits=logits, hidden_states=outputs.hidden_states,
        attentions=outputs.attentions)
    return output.to_tuple() if return_dict is False else output


for _config, _model, _auto in (
    (SynthesizerConfig, SynthesizerForConditionalGeneration, "AutoModelForSeq2SeqLM"),
    (SynthesizerConfig, SynthesizerEncoderModel, "AutoModel"),
    (SynthesizerConfig, SynthesizerForSequenceClassification,
     "AutoModelForSequenceClassification")):
  _config.register_for_auto_class()
  _model.register_for_auto_class(_auto)
