"""Runs a checkpoint on text and gets the attention weights of its layers.

gin builds the model, as in the trainer. The weights are the tensors that the layers
themselves compute with (see `synthesizer_mtf.attention.intermediates`).
"""

import collections
from collections.abc import Iterable
import dataclasses

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import utils
import numpy as np
import synthesizer_mtf  # noqa: F401
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention.others import linformer
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.model import session
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

# The features that a model reads, by its type.
_FEATURES = {"bitransformer": ("inputs", "targets"), "lm": ("targets",),
             "delimited_lm": ("inputs", "targets"), "aligned": ("inputs",)}
_FLAGS = {"inputs": "--input", "targets": "--target"}

# The id of some token that is neither padding nor the end of a sequence.
_ANY_ID = 2


@dataclasses.dataclass
class Attention:
  """The attention of one layer for one example.

  Attributes:
    weights: <float32>[heads, length, memory_length]; rows sum to 1.
    mask: <bool>[length, memory_length], which keys a query may see.
    tokens: the strings of the rows and columns; None for each without text.
    alpha: <float32>[heads, parts], or None.
  """
  weights: np.ndarray
  mask: np.ndarray
  tokens: list[str | None]
  alpha: np.ndarray | None


@dataclasses.dataclass
class Layer:
  """A layer whose attention can be drawn.

  Attributes:
    name: the stack and the index of the block, such as "encoder/0".
    attention: the notation, such as "R+V".
    parts: the names of the parts that have weights alpha, or [].
    needs_text: whether the weights depend on the tokens.
  """
  name: str
  attention: str
  parts: list[str]
  needs_text: bool

  @property
  def stack(self) -> str:
    return layer_names.stack_of(self.name)


class Model:
  """A model in a graph and session of its own, on one CPU.

  Attributes:
    layers: a dict from names to `Layer`, of all layers that can be drawn.
    examples: the examples that were given.
    lengths: a dict from the model's features to their lengths.
    skipped: the names of layers that have no weights of positions.
    session: the model's `session.Lowered`.
  """

  def __init__(self, examples: Iterable[dict[str, str]] = ({},),
               length: int | None = None) -> None:
    """Builds the model that gin describes.

    Args:
      examples: dicts from "inputs" and "targets" to texts. A text may be missing if
        the layers to look at do not depend on it.
      length: the largest number of tokens of a text, and the number of tokens without
        a text; `utils.run.sequence_length` if None.

    Raises:
      ValueError: the configuration cannot be drawn.
    """
    self._type = gin_files.bound("utils.run.model_type", "bitransformer")
    if self._type not in _FEATURES:
      raise checks.Error(
          f"`utils.run.model_type` is {self._type!r} but only "
          f"{', '.join(_FEATURES)} can be drawn.")
    vocabulary = mesh_transformer.get_vocabulary()
    self._vocabularies = {"inputs": utils.inputs_vocabulary(vocabulary),
                          "targets": utils.targets_vocabulary(vocabulary)}
    self.examples = list(examples)
    self._ids = [self._encode(example, length) for example in examples]
    self.lengths = {feature: max(len(ids[feature]) for ids in self._ids)
                    for feature in _FEATURES[self._type]}
    self._collector = _Collector()
    with tf.Graph().as_default():
      tf.set_random_seed(0)
      self._build()
    self.skipped = self._collector.skipped
    self.layers = {layer.name: layer for layer in self._collector.layers}
    if not self.layers:
      raise checks.Error(
          "the model has no layer whose weights can be drawn; its gin must "
          "bind `synthesizer_stack.attention`, and Linformer has no weights of "
          "positions.")

  def _encode(self, example, length):
    """Returns token ids with the end of the sequence; arbitrary ids without a text."""
    ids = {}
    for feature in _FEATURES[self._type]:
      most = length or gin_files.bound(
          "utils.run.sequence_length", {}).get(feature)
      if not isinstance(most, int) or most < 1:
        raise checks.Error(f"`utils.run.sequence_length` gives the {feature} "
                           f"{most!r} tokens; give --length, 1 or more.")
      text, vocabulary = example.get(feature), self._vocabularies[feature]
      ids[feature] = [_ANY_ID] * most
      if text:
        ids[feature] = [*vocabulary.encode(text), vocabulary.eos_id][:most]
    return ids

  def _build(self):
    # In float32, as in T5 without a TPU; gin chooses the dtype of saved variables.
    self._model = building.Model(
        tuple(self._vocabularies[name].vocab_size for name in _FLAGS), self._type,
        dtype=utils.get_variable_dtype(
            slice_dtype="float32", activation_dtype="float32"))
    features = dict(self._model.feed({
        name: f"batch:1,length:{length}" for name, length in self.lengths.items()}))
    if isinstance(self._model.transformer, synthesizer_mtf.EncoderClassifier):
      features["targets"] = mtf.ones(
          self._model.mesh, mtf.convert_to_shape("batch:1,length:1"), tf.int32)
    elif self._type == "aligned":
      features["targets_segmentation"] = mtf.minimum(features["inputs"], 1)
    with intermediates.capture(self._collector):
      self._model.call(features, compute_loss=False)
    self.session = session.Lowered(self._model)

  def attend(self, names: Iterable[str],
             example: int = 0) -> dict[str, Attention]:
    """Returns the attention of some layers.

    Args:
      names: keys of `layers`.
      example: the index of the example.

    Returns:
      a dict from names to `Attention`.

    Raises:
      ValueError: a text is missing.
    """
    for name in names:
      self._check_text(self.layers[name], self.examples[example])
    fetches = {name: self._collector.tensors[name] for name in names}
    feeds = {
        self._model.fed[feature]: [np.pad(ids, (0, self.lengths[feature] - len(ids)))]
        for feature, ids in self._ids[example].items()}
    values = self.session.run(fetches, feeds)
    return {name: _without_padding(
        self._tokens(self.layers[name], example), **values[name])
            for name in names}

  def alphas(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the weights of the parts of some mixtures.

    Args:
      names: keys of `layers`, of mixtures that have weights alpha.

    Returns:
      a dict from names to <float32>[heads, parts], or [parts] for all heads.
    """
    return self.session.run(
        {name: self._collector.tensors[name]["alpha"] for name in names})

  def _check_text(self, layer, example):
    needed = list(self.lengths) if self._is_decoder(layer) else ["inputs"]
    missing = [_FLAGS[feature] for feature in needed if not example.get(feature)]
    if layer.needs_text and missing:
      raise checks.Error(
          f"{layer.name} is {layer.attention}, whose attention depends on the "
          f"tokens; give a text with {' and '.join(missing)}, or "
          "choose other layers with --layers.")

  def _tokens(self, layer, example):
    """Returns the tokens of the rows and of the columns; None for each without text."""
    ids, texts = self._ids[example], self.examples[example]
    features = ["inputs"] if not self._is_decoder(layer) else (
        ["inputs", "targets"] if self._type == "delimited_lm" else ["targets"])
    tokens = sum([
        self._pieces(feature, ids[feature]) if texts.get(feature)
        else [None] * len(ids[feature]) for feature in features], [])
    if self._is_decoder(layer) and tokens[0] is not None:
      # A decoder reads the previous token at each position.
      tokens = ["<start>"] + tokens[:-1]
    return tokens

  def _is_decoder(self, layer):
    model = self._model.transformer
    if isinstance(model, transformer.Bitransformer):
      return not layer.stack.startswith(model.encoder.name)
    return self._type != "aligned"

  def _pieces(self, feature, ids):
    vocabulary = self._vocabularies[feature]
    special = {vocabulary.eos_id: "</s>", vocabulary.pad_id: "<pad>"}
    return [special.get(i) or vocabulary.decode([i]) or "_" for i in ids]


class _Collector(intermediates.Capture):
  """Captures the intermediates of each layer, as TensorFlow's tensors."""

  def __init__(self):
    self.layers, self.skipped = [], []
    self.tensors = collections.defaultdict(dict)
    self._parts = {}

  def capture_alpha(self, alpha, synthesizers):
    name = layer_names.short_name(intermediates.layer_name())
    self._parts[name] = [functions.part_name(s) for s in synthesizers]
    self._keep(name, "alpha", alpha)

  def capture_weights(self, weights, mask, inputs):
    name = layer_names.short_name(intermediates.layer_name())
    layer = inputs.context.current_layer
    if isinstance(layer, linformer.Linformer):
      self.skipped.append(name)
      return
    if any(name == other.name for other in self.layers):
      raise checks.Error(
          f"two layers have the name {name!r}, so that their pictures could not be "
          "told apart; plot a model whose encoder and decoder have names of their own.")
    self.layers.append(Layer(
        name, "+".join(map(functions.part_name, layer.mixture.synthesizers)),
        self._parts.get(name, []), inputs.has_batch(weights)))
    weights = intermediates.normalized(weights, mask)
    ends = [inputs.length, inputs.memory_length]
    self._keep(name, "weights", weights, [inputs.heads, *ends])
    pairs = (mtf.ones(weights.mesh, mtf.Shape(ends)) if mask.pairs is None
             else mtf.cast(mask.pairs, tf.float32))
    self._keep(name, "mask", pairs, ends)

  def _keep(self, name, kind, tensor, last=()):
    """Keeps a tensor, with some of its dimensions at the end."""
    tensor = mtf.transpose(tensor, [
        *(d for d in tensor.shape.dims if d not in last), *last])

    def receive(array, is_tpu):
      del is_tpu
      self.tensors[name][kind] = array

    intermediates.CaptureOperation([tensor], receive)


def _without_padding(tokens, weights, mask, alpha=None):
  """Returns an `Attention` with as many positions as there are tokens."""
  size = len(tokens)
  weights = weights.reshape(weights.shape[-3:])[:, :size, :size]
  mask = mask.reshape(mask.shape[-2:])[:size, :size] > 0
  if alpha is not None:
    alpha = np.broadcast_to(alpha, (len(weights), alpha.shape[-1]))
  return Attention(weights, mask, tokens, alpha)
