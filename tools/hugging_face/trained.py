"""Reads the `Architecture` of a trained model, and its self-attention."""

import collections
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.fast import cross_attention
from synthesizer_mtf.t5 import classifier
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import attention
from synthesizer_mtf.trainer.model import building
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

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


def read(path: str, step: int, is_left_out: Callable[[str], bool]) -> tuple[
    architecture.Architecture, dict[tuple[str, int], attention.Attention]]:
  """Reads the model that gin describes, without building its graph.

  Args:
    path: the path of the model's checkpoint.
    step: the step of the model's checkpoint.
    is_left_out: whether a variable, by its name, is not to be exported.

  Returns:
    (architecture, {(stack, number of the block): its self-attention})

  Raises:
    ValueError: PyTorch cannot compute the model.
  """
  kind = gin_files.bound("utils.run.model_type", "bitransformer")
  if kind != "bitransformer":
    raise checks.Error(f"`utils.run.model_type` is {kind!r}, but only an encoder "
                       "with or without a decoder, \"bitransformer\", can be "
                       "exported.")
  rows, width = _embedding(path)
  with tf.Graph().as_default(), gin_files.restored():
    gin_files.bind({"synthesizer_fast.enabled": False})  # Layers are T5's own then.
    model = building.Model((rows, rows), kind).transformer
  stacks = {"encoder": model.encoder}
  if not isinstance(model, classifier.EncoderClassifier):
    _only("make_bitransformer.bitransformer_cls", type(model),
          transformer.Bitransformer)
    stacks["decoder"] = model.decoder
  for name, part in stacks.items():
    _check_stack(name, part)
  blocks = {(name, block): layers for name, part in stacks.items()
            for block, layers in enumerate(_blocks(name, part))}
  _check_blocks(blocks)
  self_attention = {(name, block): attention.read(
      layers[0], step, f"block {block} of the {name}")
                    for (name, block), layers in blocks.items()}
  counts = collections.Counter(name for name, _ in blocks)
  return architecture.Architecture(
      **_sizes(blocks, self_attention, width), vocab_size=rows,
      encoder_layers=counts["encoder"],
      decoder_layers=counts["decoder"],
      tied="decoder" not in stacks or
      model.decoder.shared_embedding_and_softmax_weights,
      classifier=_classifier(path, model, is_left_out)), self_attention


def _sizes(blocks, self_attention, width):
  """Returns the sizes that all layers share.

  Cross-attention decides the heads. Self-attention may have others.
  """
  sizes = {"d_model": width,
           "epsilon": gin_files.bound("sublayer_rms_norm.epsilon", 1e-6)}
  shared: dict[str, Any] = {}
  for (name, block), layers in blocks.items():
    place = f"block {block} of the {name}"
    for layer in layers[1:]:
      _agree(place, sizes, _layer_sizes(layer))
    own = self_attention[name, block]
    bias = own.description.get("relative_bias")
    if bias:
      _agree(place, sizes, {"buckets": own.buckets})
    if bias == attention.SHARED:
      _agree(place, shared, {f"heads of a shared bias in the {name}": own.heads})
  first = next(iter(self_attention.values()))
  return {"heads": first.heads, "d_kv": first.d_kv, **sizes}


def _classifier(path, model, is_left_out):
  """Returns the `Classifier` of a model, or None."""
  if not isinstance(model, classifier.EncoderClassifier):
    return None
  kernel = tf.train.load_checkpoint(path).get_variable_to_shape_map().get(
      "classifier/kernel")
  if kernel is None or is_left_out("classifier/kernel"):
    return None
  task = gin_files.bound("get_vocabulary.mixture_or_task_name", None)
  classes = task and utils.targets_vocabulary(mesh_transformer.get_vocabulary(task))
  if not isinstance(classes, labels.LabelVocabulary):
    raise checks.Error(
        f"{path!r} is a classifier, but gin names no task whose targets are classes; "
        "name it with --gin_param=\"get_vocabulary.mixture_or_task_name = 'TASK'\", or "
        "leave the classifier out with --leave_out=^classifier.")
  return architecture.Classifier(
      classes.labels, kernel[1], model.pooling, tuple(model.hidden_sizes))


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
    _only(f"{name}/LayerStack.{parameter}",
          getattr(stack.layer_stack, f"_{parameter}") or [], *known)


def _blocks(name, stack):
  """Returns the layers of each block."""
  count = len(architecture.layers(name))
  layers = stack.layer_stack.layers
  return [layers[i:i + count] for i in range(0, len(layers), count)]


def _check_blocks(blocks):
  """Raises a ValueError unless all layers after self-attention are T5's."""
  for (name, block), layers in blocks.items():
    wanted, classes = architecture.layers(name), [_class(layer) for layer in layers]
    if classes[1:] != wanted[1:]:
      raise checks.Error(
          f"block {block} of the {name} is {', '.join(classes)}, but Hugging "
          f"Face's T5 has {', '.join(wanted)}; such a model cannot be exported.")


def _class(layer):
  """The name of a layer's class; with its module, if it only has the name of T5's."""
  kind = type(layer)
  name = kind.__name__
  stock = getattr(transformer_layers, name, kind)
  return name if kind is stock else f"{kind.__module__}.{name}"


def _layer_sizes(layer):
  """Returns the sizes of any layer but self-attention."""
  if isinstance(layer, transformer_layers.DenseReluDense):
    return _feed_forward_sizes(layer)
  if not cross_attention.is_plain(layer):
    raise checks.Error("EncDecAttention has options that T5 does not have; such a "
                       "model cannot be exported.")
  _only("EncDecAttention.relative_attention_type", layer.relative_attention_type,
        None)
  return {"heads": layer.num_heads, "d_kv": layer.key_value_size}


def _feed_forward_sizes(layer):
  activation = layer.activation
  if not isinstance(activation, Sequence) or isinstance(activation, str):
    activation = [activation]
  kinds = {value: key for key, value in architecture.ACTIVATIONS.items()}
  _only("DenseReluDense.activation", tuple(activation), *kinds)
  _only("DenseReluDense.use_bias", layer.use_bias, False)
  return {"d_ff": layer.hidden_size, "feed_forward": kinds[tuple(activation)],
          "dropout_rate": layer.dropout_rate}


def _agree(place, sizes, more):
  """Adds the sizes `more` to `sizes`; raises a ValueError where the two differ."""
  for key, value in more.items():
    if sizes.setdefault(key, value) != value:
      raise checks.Error(
          f"{place} has {key} {value!r}, another {sizes[key]!r}, but Hugging "
          "Face's T5 has one for all; such a model cannot be exported.")
