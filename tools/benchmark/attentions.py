"""The rows of the benchmark: attentions, as gin bindings on one T5 model.

The names of our own attentions are their notation. Our attentions, and the floor, in
which no token attends to another, have the fast cross-attention of `synthesizer_stack`,
the embeddings and losses of `synthesizer_vocabulary` and the updates of
`synthesizer_optimizer`, unless the configuration says otherwise. Nothing else in the
model differs, except that `UT:V` has one block in a stack and calls it many times.
`SelfAttention`, the authors' `Synthesizer` and `LocalConvAttnBlock` are layers of
mesh_tensorflow. The rest of their models is also mesh_tensorflow's.
"""

from collections.abc import Callable
import inspect
import math
import string
from typing import Any
from typing import NamedTuple

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import notation
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import tables

STOCK = "SelfAttention"
FLOOR = "floor"
MIXTURES = ["R+D", "R+V", "D+V", "FR+V", "FR+D+V"]
ENCODER_ONLY = ["Linformer"]
_IN_BFLOAT16 = " in bfloat16"
# From parts of the model to the parameters that switch our code off. In the rows of
# mesh_tensorflow's layers, these parts are also mesh_tensorflow's.
STOCK_PARTS = {
    "cross_attention": "synthesizer_stack.fast_cross_attention",
    "feed_forward": "synthesizer_stack.fast_feed_forward",
    "norm": "synthesizer_stack.fast_norm",
    "vocabulary": "synthesizer_vocabulary.fast",
    "optimizer": "synthesizer_optimizer.fast",
    "decoding": "synthesizer_decoding.fast"}

# mesh_tensorflow's attention.synthetic_attention has this number hard-coded in the
# modes that mix with the dot product.
_AUTHORS_LENGTH = 512


class Row(NamedTuple):
  """One attention to measure.

  Attributes:
    name: the name of the row in `--rows`.
    family: "ours", "authors", "stock", "floor" or "baseline".
    stack_bindings: a function (stack, length) -> list of gin bindings, where `stack`
      is "encoder" or "decoder" and `length` is the length of its sequences.
    paper: the name of the row in `tables.TABLE_4`, or None.
    longest: the longest sequence that the layer can take, or None.
    elsewhere: what another program computes the row with, as `studies.peers` does; or
      None. It is called with (row, configuration, measure), and returns an object with
      `parameters`, `versions`, `run` and `close`. Its `obstacle`, with the same
      arguments, returns why this is not possible, or None.
    precision: the precision of the products, "float32" or "bfloat16"; another program
      may have more.
  """
  name: str
  family: str
  stack_bindings: Callable[[str, int], list[str]] = lambda stack, length: []
  paper: str | None = None
  longest: int | None = None
  elsewhere: Any = None
  precision: str = "float32"

  def bindings(self, inputs: int, targets: int) -> list[str]:
    """Returns the gin bindings of this row, for these lengths of the two stacks."""
    theirs = self.family in ("authors", "stock")
    return (self.stack_bindings("encoder", inputs) +
            self.stack_bindings("decoder", targets) +
            theirs * [f"{parameter} = False" for parameter in STOCK_PARTS.values()])

  def obstacle(self, inputs: int, targets: int) -> str | None:
    """Returns why the row is not possible at these lengths, or None."""
    if self.precision == "bfloat16" and not mixed_precision.has_products():
      return "this processor has no products in bfloat16"
    length = max(inputs, targets)
    if self.longest is None or length <= self.longest:
      return None
    return (f"mesh_tensorflow's code for this mode has the length {self.longest} "
            f"written into it, and the sequences have {length}")


@gin.configurable(module="synthesizer_mtf.tools")
class ValuesOnly(transformer.TransformerLayer):
  """The floor: each token sees only itself.

  Its variables are `v` [d_model, heads * d_kv] and `o` [heads * d_kv, d_model], the
  least that an attention layer needs.
  """

  def __init__(self, num_heads: int = gin.REQUIRED,
               key_value_size: int = gin.REQUIRED) -> None:
    self.size = num_heads * key_value_size

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    del losses
    d_model = context.model.model_dim
    heads = mtf.Dimension("heads", self.size)

    def project(tensor, name, old, new):
      return mtf.layers.dense(
          tensor, [new], reduced_dims=[old], use_bias=False, name=name,
          variable_dtype=context.variable_dtype)

    return project(project(x, "v", d_model, heads), "o", heads, d_model)


def _row(name, family, *bindings, base=None, **fields):
  """Returns a row from templates of gin bindings.

  Args:
    name: the name of the row.
    family: as in `Row`.
    *bindings: bindings, where $stack and $length are those of each stack, and $scale is
      the initial scale of a linear layer of this length.
    base: another row, whose bindings come first.
    **fields: further fields of the row.
  """
  def stack_bindings(stack, length):
    values = {"stack": stack, "length": length, "scale": length ** -0.5}
    return (base.stack_bindings(stack, length) if base else []) + [
        string.Template(binding).substitute(values) for binding in bindings]

  return Row(name, family, stack_bindings, **fields)


def _ours(name):
  """Returns a row for a word of `attention_words`, with tables of these lengths."""
  classes: dict[str, Any] = {**notation.SYNTHESIZING_FUNCTIONS, **notation.LAYERS}
  parts = [classes[part] for part in _parts(name) if part in classes]
  limited = dict.fromkeys(c.__name__ for c in parts
                          if "max_length" in inspect.signature(c.__init__).parameters)
  chosen = attention_words.by_stack(name)

  def bindings(stack, length):
    attention = chosen.get(stack) or chosen[""]
    return [f"{stack}/synthesizer_stack.attention = {attention}",
            *(f"{stack}/{part}.max_length = {length}" for part in limited)]

  paper = {"V": "Transformer"}.get(name, name)
  return Row(name, "ours", bindings, paper if paper in tables.TABLE_4 else None)


def _parts(word):
  """Returns the names of functions and layers, and references to classes, of a word."""
  return [part for entry in attention_words.entries(word)
          for part in ([entry] if entry in notation.LAYERS else entry.split("+"))]


def _encoder_only(name):
  """Returns a row for a layer that cannot decode; the decoder has `SelfAttention`."""
  in_both = _ours(name).stack_bindings
  return Row(name, "ours", lambda stack, length: (
      in_both(stack, length) if stack == "encoder" else []))


def _sparse(name, **parameters):
  """Returns a row for an attention of the Sparse Transformer.

  Its time grows as length * (stride + columns * length / stride). The stride of these
  rows, the power of two nearest to the square root of columns * length, is near the
  minimum. `SparseStrided` reads one column of each block.
  """
  def bindings(stack, length):
    columns = parameters.get("columns", 1)
    stride = max(columns, 2 ** round(math.log2(columns * length) / 2))
    values = {"stride": stride, **parameters}
    return [f"{stack}/synthesizer_stack.attention = '{name}'"] + [
        f"{stack}/{name}.{key} = {value}" for key, value in values.items()]

  return Row(name, "ours", bindings)


def _authors(mode, paper):
  """Returns a row for a `synthesize_mode` of mesh_tensorflow's `Synthesizer`.

  `defaults.gin` binds nothing for this class. Two modes take the length of their
  tables from `attention_kwargs`; the others always have 512.
  """
  layer = "transformer_layers.Synthesizer"
  return _row(
      f"Synthesizer:{mode}", "authors",
      f"$stack/synthesizer_stack.attention = @{layer}",
      f"{layer}.num_heads = %num_heads",
      f"{layer}.key_value_size = %d_kv",
      f"{layer}.dropout_rate = %dropout_rate",
      f"{layer}.synthesize_mode = '{mode}'",
      f"$stack/{layer}.attention_kwargs = {{'max_length': $length}}",
      paper=paper, longest=_AUTHORS_LENGTH if "plus" in mode else None)


def _convolution(name, attention_type, paper):
  """Returns a row for `LocalConvAttnBlock`, with the paper's 9 positions."""
  layer = "LocalConvAttnBlock"

  def bindings(stack, length):
    del length
    first, last = (-4, 4) if stack == "encoder" else (-8, 0)
    return [f"{stack}/synthesizer_stack.attention = @{layer}",
            f"{stack}/{layer}.min_relative_pos = {first}",
            f"{stack}/{layer}.max_relative_pos = {last}",
            f"{layer}.output_size = %d_model",
            f"{layer}.attention_type = '{attention_type}'"]

  return Row(f"{layer}:{name}", "stock", bindings, paper)


def _our_convolution(name):
  """Returns a row for LightConv or DyConv with the layers that the paper's sizes imply.

  These layers have the parameters of `LocalConvAttnBlock`, with one kernel for each
  channel. The layer's default, one kernel for each head, is smaller.
  """
  return _row(name, "ours", f"{name}.kernel_size = 9",
              f"{name}.kernels = 'per_channel'", f"{name}.pointwise = True",
              f"{name}.use_bias = True", base=_ours(name), paper=name)


# Hand-written heads; the decoder has those that look left.
_PATTERN = _row(
    "Pattern", "ours", "decoder/FixedPatterns.patterns = ['current', 'previous', "
    "'left_context', 'start']", base=_ours("Pattern"))

ROWS = {row.name: row for row in (
    Row(STOCK, "stock", paper="Transformer"),
    *map(_ours, [name for name in notation.SYNTHESIZING_FUNCTIONS
                 if name != _PATTERN.name] + MIXTURES),
    *map(_encoder_only, ENCODER_ONLY),
    # R without the softmax.
    _row("Mixer", "ours", "SyntheticAttention.softmax = False",
         "$stack/RandomLogits.stddev = $scale", base=_ours("R")),
    _PATTERN,
    # V in a Universal Transformer, whose stacks repeat one block.
    _row("UT:V", "ours", "include 'stacks/universal.gin'", base=_ours("V")),
    *map(_our_convolution, ["LightConv", "DyConv"]),
    _sparse("SparseFixed", columns=8),
    _sparse("SparseStrided"),
    _authors("random", "R"),
    _authors("dense_minus", "D"),
    _authors("random_plus_alpha", "R+V"),
    _authors("dense_plus_alpha", "D+V"),
    _convolution("lightweight", "lightweight_conv", "LightConv"),
    _convolution("dynamic", "dynamic_conv", "DyConv"),
    _row(FLOOR, "floor", "$stack/synthesizer_stack.attention = @ValuesOnly",
         "ValuesOnly.num_heads = %num_heads", "ValuesOnly.key_value_size = %d_kv"),
)}


def in_precisions(rows: list[Row], precisions: list[str]) -> list[Row]:
  """Returns each row in each precision; the name of a row in bfloat16 says so.

  A row that already has another precision than float32 is returned once, unchanged.
  """
  return [row if precision == "float32" or row.precision != "float32" else
          row._replace(name=row.name + _IN_BFLOAT16, precision=precision)
          for row in rows for precision in (
              precisions if row.precision == "float32" else [row.precision])]


def find_row(name: str) -> Row:
  """Returns the row with this name, or for this notation.

  Args:
    name: a key of `ROWS`, or any word of `attention_words`. The ending " in bfloat16"
      stands for products in bfloat16.

  Returns:
    a `Row`.

  Raises:
    ValueError: there is no such row.
  """
  if name.endswith(_IN_BFLOAT16):
    return in_precisions(
        [find_row(name.removesuffix(_IN_BFLOAT16))], ["bfloat16"])[0]
  if name in ROWS:
    return ROWS[name]
  known = {*notation.SYNTHESIZING_FUNCTIONS, *notation.LAYERS}
  if all(part in known or part.startswith("@") for part in _parts(name)):
    return _ours(name)
  raise checks.Error(
      f"unknown row {name!r} in --rows; use some of {', '.join(ROWS)}, any mixture in "
      "the paper's notation, a list as '[R,R,V]' with an entry for each block, or "
      "'R/V' with the encoder's and the decoder's.")
