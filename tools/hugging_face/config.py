"""Hugging Face's `config.json`, read into an `Architecture` and written from one."""

from collections.abc import Iterable
import json
import os
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import attention

FILE = "config.json"
GENERATION = "generation_config.json"

_CLASSIFIER = "SynthesizerForSequenceClassification"

# The known architectures, by `model_type` and `Architecture.kind`.
_CLASSES = {
    "t5": {"encoder-decoder": "T5ForConditionalGeneration",
           "encoder": "T5EncoderModel"},
    "mt5": {"encoder-decoder": "MT5ForConditionalGeneration",
            "encoder": "MT5EncoderModel"},
    attention.SYNTHESIZER: {
        "encoder-decoder": "SynthesizerForConditionalGeneration",
        "encoder": "SynthesizerEncoderModel", "classifier": _CLASSIFIER}}

# What loads each kind in Transformers.
AUTO = {"encoder-decoder": "AutoModelForSeq2SeqLM", "encoder": "AutoModel",
        "classifier": "AutoModelForSequenceClassification"}

# An old name of T5ForConditionalGeneration.
_SAME = {"T5WithLMHeadModel": "T5ForConditionalGeneration"}

# Defaults of keys that `config.json` may lack, by `model_type`.
_DEFAULTS = {
    "t5": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "mt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    attention.SYNTHESIZER: {"feed_forward_proj": "relu", "tie_word_embeddings": True}}

_SIZES = ("d_model", "d_kv", "d_ff", "num_heads", "num_layers", "vocab_size")

# The keys whose values we read.
_READ = {
    *_SIZES, "num_decoder_layers", "model_type", "architectures",
    "feed_forward_proj", "dense_act_fn", "is_gated_act", "tie_word_embeddings",
    "scale_decoder_outputs", "relative_attention_num_buckets",
    "relative_attention_max_distance", "dropout_rate", "layer_norm_epsilon",
    "is_encoder_decoder", "is_decoder", "pad_token_id", "eos_token_id",
    "decoder_start_token_id", "tokenizer_class", "auto_map", "encoder_attention",
    "decoder_attention", "classifier_rows", "classifier_pooling",
    "classifier_hidden_sizes"}

# Keys that change neither a weight nor its use. They concern the initialization and
# storage of weights, decoding, and models other than T5. In T5 1.0 they also hold the
# prefixes and lengths of tasks.
_WITHOUT_EFFECT = {
    "_name_or_path", "initializer_factor", "n_positions", "output_past",
    "use_cache", "gradient_checkpointing", "classifier_dropout",
    "task_specific_params", "transformers_version", "torch_dtype", "dtype",
    "torchscript", "use_bfloat16", "return_dict", "return_dict_in_generate",
    "output_attentions", "output_hidden_states", "output_scores", "id2label",
    "label2id", "num_labels", "finetuning_task", "problem_type", "bos_token_id",
    "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "prefix",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "chunk_size_feed_forward", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "tf_legacy_loss", "pruned_heads",
    "_commit_hash", "attn_implementation", "_attn_implementation_autoset",
    "tie_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"}

# Keys that could change a model, with the values that do not change it.
_ONLY = {"pruned_heads": ({}, None), "tie_encoder_decoder": (False, None),
         "add_cross_attention": (False, None), "is_decoder": (False, None),
         "cross_attention_hidden_size": (None,), "pad_token_id": (0, None),
         "eos_token_id": (1, [1], None), "decoder_start_token_id": (0, None)}


def read(folder: str, ignored: Iterable[str]) -> dict[str, Any]:
  """Reads `config.json`.

  Args:
    ignored: keys that have no effect, as the user knows.

  Returns:
    a dict, with the defaults of T5 and mT5 for missing keys.

  Raises:
    ValueError: the file is missing or damaged, is of another architecture, or has an
      unknown key.
  """
  path = os.path.join(folder, FILE)
  settings = read_json(path)
  if not isinstance(settings, dict):
    raise checks.Error(f"{path!r} holds no table of keys; bring the file back.")
  model_type = settings.get("model_type")
  if model_type not in _CLASSES:
    raise checks.Error(
        f"{path!r} has model_type {model_type!r}, but only {_listed(_CLASSES)} can be "
        "imported (ByT5 is t5, Flan-T5 is t5); name another folder.")
  known = [name for classes in _CLASSES.values() for name in classes.values()]
  for name in settings.get("architectures") or []:
    if _SAME.get(name, name) not in known:
      raise checks.Error(
          f"{path!r} is of the architecture {name!r}, but only {_listed(known)} "
          "can be imported; name another folder.")
  unknown = sorted(set(settings) - _READ - _WITHOUT_EFFECT - set(ignored))
  if unknown:
    raise checks.Error(
        f"{path!r} has the key {unknown[0]!r} ({settings[unknown[0]]!r}), which is "
        "not known here; if it does not change what the model computes, give "
        f"--ignore={unknown[0]}.")
  return {**_DEFAULTS[model_type], **settings}


def read_json(path: str) -> Any:
  """Reads a file of JSON; raises a ValueError if it is missing or damaged."""
  try:
    with open(path, encoding="utf-8") as f:
      return json.load(f)
  except FileNotFoundError as error:
    raise checks.Error(
        f"there is no {os.path.basename(path)} in {os.path.dirname(path)!r}; name "
        "a folder that Hugging Face's save_pretrained wrote.") from error
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise checks.Error(
        f"{path!r} is not JSON ({error}); bring the file back.") from error


def is_tied(config: dict[str, Any]) -> bool:
  """Returns whether the output layer is the embedding, which Mesh then scales.

  Transformers 5 writes `scale_decoder_outputs`. In older versions the scaling follows
  from `tie_word_embeddings`.
  """
  return _is_encoder(config) or config.get(
      "scale_decoder_outputs", config["tie_word_embeddings"])


def _is_encoder(config):
  """Returns whether a configuration describes an encoder alone."""
  names = config.get("architectures") or []
  return (config.get("is_encoder_decoder") is False or
          any(name.endswith(("EncoderModel", _CLASSIFIER)) for name in names))


def to_architecture(folder: str, config: dict[str, Any]) -> architecture.Architecture:
  """Returns the `Architecture` that a configuration describes.

  Args:
    folder: the path of the folder, for messages.
    config: what `read` returns.

  Raises:
    ValueError: Mesh TensorFlow cannot compute such a model.
  """
  path = os.path.join(folder, FILE)
  sizes = {key: _whole(path, config, key) for key in _SIZES}
  decoder_layers = config.get("num_decoder_layers") or sizes["num_layers"]
  for key, values in _ONLY.items():
    if key in config and config[key] not in values:
      raise checks.Error(
          f"{path!r} has {key} {config[key]!r}, but T5 on Mesh TensorFlow knows "
          f"{_listed(values)} only; such a model cannot be imported.")
  distance = config.get("relative_attention_max_distance",
                        architecture.MAX_DISTANCE)
  if distance != architecture.MAX_DISTANCE:
    raise checks.Error(
        f"{path!r} has relative_attention_max_distance {distance!r}, but Mesh "
        f"TensorFlow's relative position bias has {architecture.MAX_DISTANCE} and no "
        "parameter for it; such a model cannot be imported.")
  return architecture.Architecture(
      d_model=sizes["d_model"], d_kv=sizes["d_kv"], d_ff=sizes["d_ff"],
      heads=sizes["num_heads"], encoder_layers=sizes["num_layers"],
      decoder_layers=0 if _is_encoder(config) else decoder_layers,
      vocab_size=sizes["vocab_size"], feed_forward=_feed_forward(path, config),
      tied=is_tied(config), buckets=config.get("relative_attention_num_buckets", 32),
      dropout_rate=config.get("dropout_rate", 0.1),
      epsilon=config.get("layer_norm_epsilon", 1e-6), classifier=_classifier(config))


def _classifier(config):
  if _CLASSIFIER not in (config.get("architectures") or []):
    return None
  labels = config.get("id2label") or {}
  return architecture.Classifier(
      tuple(labels[key] for key in sorted(labels, key=int)), config["classifier_rows"],
      config.get("classifier_pooling", "mean"),
      tuple(config.get("classifier_hidden_sizes", ())))


def _whole(path, config, key):
  value = config.get(key)
  if not isinstance(value, int) or value < 1:
    raise checks.Error(
        f"{path!r} has {key} {value!r}, but it must be a positive integer; bring the "
        "file back.")
  return value


def _feed_forward(path, config):
  name = config["feed_forward_proj"]
  if name not in architecture.ACTIVATIONS:
    raise checks.Error(
        f"{path!r} has feed_forward_proj {name!r}, but Mesh TensorFlow has only "
        f"{_listed(architecture.ACTIVATIONS)}; such a model cannot be imported.")
  meant = {"dense_act_fn": _activation(name),
           "is_gated_act": len(architecture.ACTIVATIONS[name]) > 1}
  for key, value in meant.items():
    if config.get(key, value) != value:
      raise checks.Error(
          f"{path!r} has {key} {config[key]!r}, but feed_forward_proj {name!r} "
          f"means {value!r}; bring the file back.")
  return name


def _activation(feed_forward):
  """Returns transformers' name of a function; "gated-gelu" does not mean its "gelu"."""
  name = feed_forward.removeprefix("gated-")
  return "gelu_new" if name == "gelu" else name


def _listed(names):
  return ", ".join(map(str, names))


def generation() -> str:
  """Returns the text of a `generation_config.json`: the ids that T5 decodes with."""
  return json.dumps({"decoder_start_token_id": 0, "eos_token_id": 1,
                     "pad_token_id": 0}, indent=2) + "\n"


def text(arch: architecture.Architecture, blocks: architecture.Blocks, is_t5: bool,
         dtype: str, byte_tokens: bool) -> str:
  """Returns the text of a `config.json`.

  Args:
    arch: the model without its self-attention.
    blocks: the self-attention of each block.
    is_t5: whether Transformers' own T5 computes the model, not modeling_synthesizer.py.
    dtype: the dtype of the weights, "float32" or "bfloat16".
    byte_tokens: whether the vocabulary consists of bytes.
  """
  model_type = "t5" if is_t5 else attention.SYNTHESIZER
  cls = _CLASSES[model_type][arch.kind]
  settings = {**_t5(arch, dtype, byte_tokens), "model_type": model_type,
              "architectures": [cls], **({} if is_t5 else _own(arch, blocks, cls))}
  return json.dumps(dict(sorted(settings.items())), indent=2) + "\n"


def _own(arch, blocks, cls):
  """Returns the keys that only modeling_synthesizer.py reads."""
  settings = {
      "auto_map": {"AutoConfig": "configuration_synthesizer.SynthesizerConfig",
                   AUTO[arch.kind]: f"modeling_synthesizer.{cls}"},
      "scale_decoder_outputs": arch.tied}
  for stack, count in arch.stacks.items():
    described = [_described(arch, blocks[stack, block]) for block in range(count)]
    same = all(one == described[0] for one in described)
    settings[f"{stack}_attention"] = described[0] if same else described
  if arch.classifier:
    names = arch.classifier.labels
    settings.update({
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "classifier_rows": arch.classifier.rows,
        "classifier_pooling": arch.classifier.pooling,
        "classifier_hidden_sizes": list(arch.classifier.hidden_sizes)})
  return settings


def _described(arch, layer):
  """A description of self-attention, with sizes where they differ from T5's."""
  sizes = {"num_heads": (layer.heads, arch.heads), "d_kv": (layer.d_kv, arch.d_kv),
           "dropout_rate": (layer.dropout_rate, arch.dropout_rate)}
  return {**layer.description,
          **{key: own for key, (own, stock) in sizes.items() if own != stock}}


def _t5(arch, dtype, byte_tokens):
  encoder = not arch.decoder_layers
  return {
      "classifier_dropout": 0.0,
      "d_ff": arch.d_ff, "d_kv": arch.d_kv, "d_model": arch.d_model,
      "decoder_start_token_id": 0,
      "dense_act_fn": _activation(arch.feed_forward),
      "dropout_rate": arch.dropout_rate, "eos_token_id": 1,
      "feed_forward_proj": arch.feed_forward, "initializer_factor": 1.0,
      "is_encoder_decoder": not encoder, "is_gated_act": arch.gated,
      "layer_norm_epsilon": arch.epsilon,
      "num_decoder_layers": arch.decoder_layers or arch.encoder_layers,
      "num_heads": arch.heads, "num_layers": arch.encoder_layers,
      "pad_token_id": 0,
      "relative_attention_max_distance": architecture.MAX_DISTANCE,
      "relative_attention_num_buckets": arch.buckets,
      "tie_word_embeddings": arch.tied,
      "tokenizer_class": "ByT5Tokenizer" if byte_tokens else "T5Tokenizer",
      "torch_dtype": dtype, "use_cache": not encoder,
      "vocab_size": arch.vocab_size}
