"""Reads the `Architecture` of a trained model whose self-attention is V."""

import collections
from collections.abc import Sequence
from typing import Any

from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import layer as attention
from synthesizer_mtf.attention.functions import dot_product
from synthesizer_mtf.fast import cross_attention
from synthesizer_mtf.fast import feed_forward
from synthesizer_mtf.fast import sublayers
from synthesizer_mtf.t5 import classifier
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.tools.hugging_face_bridge import architecture
import tensorflow.compat.v1 as tf

_ADVICE = ("Hugging Face's T5 has no other; export a SavedModel instead, see "
           "docs/serving.md")

# Options that change what stock self-attention computes, and that cross-attention does
# not have.
_OPTIONS = ("attention_func", "use_hyperprompt", "hyperprompt_mtlshare",
            "hyperprompt_length_encoder", "hyperprompt_length_decoder")

# T5's sublayers before the first layer, around each layer, and after the last one; then
# those of models of its version 1.0, which name their variables otherwise.
_SUBLAYERS = {
    "sublayers_initial": [
        [transformer.sublayer_dropout], [transformer.sublayer_legacy_dropout]],
    "sublayers_per_layer": [
        [transformer.sublayer_rms_norm, transformer.sublayer_call_layer,
         transformer.sublayer_dropout, transformer.sublayer_residual],
        [transformer.sublayer_legacy_rms_norm, transformer.sublayer_call_layer,
         transformer.sublayer_legacy_dropout, transformer.sublayer_residual]],
    "sublayers_final": [
        [transformer.sublayer_rms_norm, transformer.sublayer_dropout],
        [transformer.sublayer_legacy_final_rms_norm,
         transformer.sublayer_legacy_dropout]]}


# The classes of T5's layers other than self-attention, by the names of scopes.
_KNOWN = {
    "DenseReluDense": [transformer_layers.DenseReluDense, feed_forward.DenseReluDense],
    "EncDecAttention": [
        transformer_layers.EncDecAttention, cross_attention.EncDecAttention]}


def read(path: str, step: int) -> tuple[
    architecture.Architecture, dict[tuple[str, int], str]]:
  """Reads the model that gin describes, without building its graph.

  Args:
    path: the path of the model's checkpoint.
    step: the step of the model's checkpoint.

  Returns:
    (architecture, {(stack, number of the block): class of the self-attention})

  Raises:
    ValueError: Hugging Face's T5 cannot compute the model.
  """
  kind = gin_files.bound("utils.run.model_type", "bitransformer")
  if kind != "bitransformer":
    raise checks.Error(f"`utils.run.model_type` is {kind!r}, but only an encoder "
                       "with or without a decoder, \"bitransformer\", can be "
                       "exported.")
  rows, width = _embedding(path)
  model = stack.build_model(
      "bitransformer", input_vocab_size=rows, output_vocab_size=rows,
      mesh_shape="", layout_rules="")
  stacks = {"encoder": model.encoder}
  if not isinstance(model, classifier.EncoderClassifier):
    _only("make_bitransformer.bitransformer_cls", type(model),
          transformer.Bitransformer)
    stacks["decoder"] = model.decoder
  for name, part in stacks.items():
    _check_stack(name, part)
  blocks = {(name, block): layers for name, part in stacks.items()
            for block, layers in enumerate(_blocks(name, part))}
  _check_attention(blocks, step)
  sizes = {"d_model": width,
           "epsilon": gin_files.bound("sublayer_rms_norm.epsilon", 1e-6)}
  for (name, block), layers in blocks.items():
    for found in (_of_attention(layers[0]), *map(_of_layer, layers[1:])):
      _agree(f"block {block} of the {name}", sizes, found)
  counts = collections.Counter(name for name, _ in blocks)
  return architecture.Architecture(
      **sizes, vocab_size=rows, encoder_layers=counts["encoder"],
      decoder_layers=counts["decoder"],
      tied="decoder" not in stacks or
      model.decoder.shared_embedding_and_softmax_weights), {
          place: _class(layers[0]) for place, layers in blocks.items()}


def _embedding(path):
  shape = tf.train.load_checkpoint(path).get_variable_to_shape_map().get(
      "shared/embedding")
  if shape is None or len(shape) != 2:
    raise checks.Error(f"{path!r} has no variable 'shared/embedding' with a row for "
                       "each id; only models with T5's own embedding can be exported.")
  return shape


def _only(parameter: str, value: Any, *known: Any) -> None:
  """Raises a ValueError unless a parameter has one of the values known to T5."""
  if value not in known:
    raise checks.Error(
        f"`{parameter}` is {value!r}, but Hugging Face's T5 has "
        f"{' or '.join(map(repr, known))}; such a model cannot be exported.")


def _check_stack(name, stack):
  """Raises a ValueError unless everything around the layers is as in T5."""
  unitransformer = f"{name}/Unitransformer"
  _only("make_bitransformer.encoder_name and decoder_name", stack.name, name)
  _only(f"{unitransformer}.positional_embedding", stack.positional_embedding,
        False)
  _only(f"{unitransformer}.ensemble", stack.ensemble_dim, None)
  _only(f"{name}/make_layer_stack.layer_stack_cls", type(stack.layer_stack),
        transformer.LayerStack)
  for parameter, known in _SUBLAYERS.items():
    _only(f"{name}/LayerStack.{parameter}", sublayers.stock(
        getattr(stack.layer_stack, f"_{parameter}")), *known)


def _blocks(name, stack):
  """Returns the layers of each block."""
  count = len(architecture.layers(name))
  layers = stack.layer_stack.layers
  return [layers[i:i + count] for i in range(0, len(layers), count)]


def _check_attention(blocks, step):
  """Raises a ValueError unless all self-attention is V, and all blocks are T5's."""
  others = {}
  for (name, block), layers in blocks.items():
    wanted, classes = architecture.layers(name), [_class(layer) for layer in layers]
    if classes[1:] != wanted[1:]:
      raise checks.Error(
          f"block {block} of the {name} is {', '.join(classes)}, but Hugging "
          f"Face's T5 has {', '.join(wanted)}; such a model cannot be exported.")
    held = _attention(layers[0], step)
    if held != "V":
      others.setdefault(f"{held} in the {name}'s blocks", []).append(str(block))
  if others:
    told = "; ".join(f"{held} {', '.join(blocks)}"
                     for held, blocks in others.items())
    raise checks.Error(f"only V can be exported, but the model holds {told}. "
                       f"{_ADVICE}.")


def _class(layer):
  """The name of a layer's class; with its module, if it only has the name of T5's."""
  kind = type(layer)
  name = kind.__name__
  return f"{kind.__module__}.{name}" if kind not in _KNOWN.get(name, [kind]) else name


def _attention(layer, step):
  """Returns the name of a self-attention layer at a step: "V", or another name."""
  if type(layer) is transformer_layers.SelfAttention:
    plain = cross_attention.is_plain(layer) and not any(
        getattr(layer, option) for option in _OPTIONS)
    return "V" if plain else "SelfAttention with options that T5 does not have"
  if not isinstance(layer, attention.SyntheticAttention):
    return _class(layer)
  parts = layer.mixture.synthesizers
  notation = "+".join(map(functions.part_name, parts))
  if not layer.softmax:
    return f"{notation} without softmax"
  return "V" if _is_v(layer.mixture, step) else notation


def _is_v(mixture, step):
  """Returns whether a mixture is V alone: all other parts, if any, have weight 0."""
  is_v = [isinstance(part, dot_product.DotProductLogits)
          for part in mixture.synthesizers]
  if len(is_v) == 1:
    return is_v[0]
  return (mixture.final_weights is not None and step >= mixture.annealing_steps[1]
          and list(mixture.final_weights) == list(map(float, is_v)))


def _of_attention(layer):
  """Returns the sizes of a V layer."""
  if isinstance(layer, attention.SyntheticAttention):
    sizes, bias = layer.heads, layer.relative_position_bias
    kind, buckets = bias.kind, bias.num_buckets
  else:
    sizes, kind = layer, layer.relative_attention_type
    buckets = layer.relative_attention_num_buckets
  _only(f"{_class(layer)}.relative_attention_type", kind, "bias_shared")
  return {"heads": sizes.num_heads, "d_kv": sizes.key_value_size,
          "buckets": buckets}


def _of_layer(layer):
  """Returns the sizes of any layer but self-attention."""
  if isinstance(layer, transformer_layers.DenseReluDense):
    return _of_feed_forward(layer)
  stock = getattr(layer, "stock", layer)
  if not cross_attention.is_plain(stock):
    raise checks.Error("EncDecAttention has options that T5 does not have; such a "
                       "model cannot be exported.")
  _only("EncDecAttention.relative_attention_type", stock.relative_attention_type,
        None)
  return {"heads": stock.num_heads, "d_kv": stock.key_value_size}


def _of_feed_forward(layer):
  activation = layer.activation
  if not isinstance(activation, Sequence) or isinstance(activation, str):
    activation = [activation]
  kinds = {value: key for key, value in architecture.ACTIVATIONS.items()}
  _only("DenseReluDense.activation", tuple(activation), *kinds)
  _only("DenseReluDense.use_bias", layer.use_bias, False)
  return {"d_ff": layer.hidden_size, "feed_forward": kinds[tuple(activation)],
          "dropout_rate": layer.dropout_rate}


def _agree(place, sizes, found):
  """Adds the sizes found to `sizes`; raises a ValueError where the two differ."""
  for key, value in found.items():
    if sizes.setdefault(key, value) != value:
      raise checks.Error(
          f"{place} has {key} {value!r}, another {sizes[key]!r}, but Hugging "
          "Face's T5 has one for all; such a model cannot be exported.")
