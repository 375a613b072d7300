"""T5's models with the parts of this room: layers, norms, vocabulary and decoding.

`attach` in this room's `__init__.py` lets `t5/stack.py` call `for_model` for each model
that it builds. What is not known exactly stays Mesh TensorFlow's: subclasses, stacks of
other classes, and models whose methods somebody has replaced.
"""

from typing import Any

import gin
from mesh_tensorflow.transformer import funnel_transformer
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import universal_transformer
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention.layer import SyntheticAttention
from synthesizer_mtf.fast import cross_attention
from synthesizer_mtf.fast import feed_forward
from synthesizer_mtf.fast import norms
from synthesizer_mtf.fast import switch
from synthesizer_mtf.fast import vocabulary
from synthesizer_mtf.fast.decoding import decoder
from synthesizer_mtf.t5 import answer_recorder
from synthesizer_mtf.t5 import stack as stacks


class ReadingDecoder(vocabulary.Reader, decoder.Decoder):
  """A `Unitransformer` with everything of this room."""


# By whether it reads the vocabulary, and whether it decodes.
_CLASSES = {(True, True): ReadingDecoder, (True, False): vocabulary.Reader,
            (False, True): decoder.Decoder}
_PARTS = "encoder", "decoder", "student", "teacher"
# The stacks that are known to call the layers of their list.
_STACKS = (transformer.LayerStack, transformer.ReversibleLayerStack,
           universal_transformer.UTLayerStack,
           funnel_transformer.FunnelTransformerLayerStack)


def _methods():
  stock, embedding = transformer.Unitransformer, transformer.VocabEmbedding
  return [stock._call_internal, stock._compute_loss, stock.sample_autoregressive,
          stock.beam_search, embedding.ids_to_embedding, embedding.hidden_to_logits]


_STOCK = _methods()


@gin.configurable(module="synthesizer_mtf")
def synthesizer_vocabulary(fast: bool = True) -> bool:
  """Whether embeddings and losses are computed without one-hot rows.

  Args:
    fast: False leaves both to Mesh TensorFlow. A binding of
      `get_vocab_embedding_cls.cls` has the same effect.

  Raises:
    ValueError: fast is not a boolean.
  """
  return switch.is_on("synthesizer_vocabulary.fast", fast) and (
      "cls" not in gin.get_bindings(transformer.get_vocab_embedding_cls))


@gin.configurable(module="synthesizer_mtf")
def synthesizer_decoding(fast: bool = True) -> bool:
  """Whether models decode by our own loops (see `fast/decoding/decoder.py`).

  Args:
    fast: False leaves decoding to Mesh TensorFlow, unless several answers are asked
      for, which only our own loops give.

  Raises:
    ValueError: fast is not a boolean.
  """
  return switch.is_on("synthesizer_decoding.fast", fast)


def as_gin_says(model: Any) -> Any:
  """A model with the parts that the switches in gin leave on."""
  several = gin_files.bound(answer_recorder.PARAMETER, None) is not None
  return for_model(model, reads=synthesizer_vocabulary(),
                   decodes=synthesizer_decoding() or several,
                   layers=switch.covers_models())


def for_model(model: Any, reads: bool = True, decodes: bool = True,
              layers: bool = True) -> Any:
  """A model with parts of this room.

  Args:
    model: a `Unitransformer`, or a model that contains some, such as a
      `Bitransformer`.
    reads: whether embeddings and losses read the vocabulary.
    decodes: whether our own loops decode.
    layers: whether the layers of the stacks, and their norms, are fast.

  Returns:
    a copy of a model with such parts; the model itself if there are none. Only a stock
    `Unitransformer` is replaced, by a subclass, and only if Mesh's methods were not.
  """
  if isinstance(model, transformer.Unitransformer):
    stack = getattr(model, "layer_stack", None)
    fast = for_stack(stack) if layers else stack
    cls = _CLASSES.get((reads, decodes and model.autoregressive)) if (
        type(model) is transformer.Unitransformer and _methods() == _STOCK) else None
    if cls is None and fast is stack:
      return model
    return _copied(model, cls or type(model), {"layer_stack": fast})
  if not isinstance(model, (transformer.Bitransformer, transformer.StudentTeacher)):
    return model
  return _copied(model, type(model), {
      part: for_model(old, reads, decodes, layers)
      for part, old in vars(model).items() if part in _PARTS})


def for_stack(stack: Any) -> Any:
  """A copy of a stack with fast layers and norms, as its own switches say.

  Args:
    stack: a stack that `make_layer_stack` made, or another object, which stays.
  """
  if type(stack) not in _STACKS:
    return stack
  asked = getattr(stack, "synthesizer_fast", {})  # `synthesizer_stack` notes it.
  layers = stack.layers
  if asked.get("cross_attention", True):
    layers = [cross_attention.for_layer(layer) for layer in layers]
  if asked.get("feed_forward", True):
    layers = [feed_forward.for_layer(layer) for layer in layers]
  fast = _copied(stack, type(stack), {"_layers": layers})
  return norms.for_stack(fast) if asked.get("norm", True) else fast


def parts(model: Any) -> list[str]:
  """The parts of a model that this room computes, in words, for a line of the log."""
  layers = [layer for stack in stacks.stacks(model) for layer in stack.layers]
  halves = [model, *(getattr(model, part, None) for part in _PARTS)]
  fast = {
      "attention": switch.is_enabled() and any(
          isinstance(layer, SyntheticAttention) for layer in layers),
      "cross-attention": any(
          isinstance(layer, cross_attention.EncDecAttention) for layer in layers),
      "feed-forward layers": any(
          isinstance(layer, feed_forward.DenseReluDense) for layer in layers),
      "norms": any(map(norms.fast_norms, stacks.stacks(model))),
      "embeddings and losses": any(
          isinstance(half, vocabulary.Reader) for half in halves),
      "decoding": any(isinstance(half, decoder.Decoder) for half in halves)}
  return [name for name, is_fast in fast.items() if is_fast]


def _copied(old, cls, changed):
  """An instance of a class with the attributes of another object, and some changed."""
  new = cls.__new__(cls)
  vars(new).update({**vars(old), **changed})
  return new
