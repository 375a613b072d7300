"""The gin files of an imported model."""

from synthesizer_mtf.attention import functions
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import attention
from synthesizer_mtf.tools.hugging_face import tokenizers

# The gin file for T5's own command, which does not know our parameters.
STOCK = "stock_t5.gin"

# Mesh TensorFlow rounds sizes of vocabularies up to a multiple of this.
_DIVISOR = 128


def stock(arch: architecture.Architecture, dtype: str,
          tokens: tokenizers.Tokenizer) -> str:
  """Returns the bindings of T5 and Mesh TensorFlow that make the model.

  Args:
    arch: the model without its self-attention.
    dtype: the dtype of the checkpoint, "float32" or "bfloat16".
    tokens: the vocabulary.
  """
  activation = list(architecture.ACTIVATIONS[arch.feed_forward])
  lines = [
      "import mesh_tensorflow.transformer.transformer",
      "import mesh_tensorflow.transformer.transformer_layers",
      "import mesh_tensorflow.transformer.utils", "",
      "utils.run.model_type = 'bitransformer'",
      f"d_model = {arch.d_model}", f"d_ff = {arch.d_ff}",
      f"d_kv = {arch.d_kv}", f"num_heads = {arch.heads}",
      f"num_layers = {arch.encoder_layers}",
      f"dropout_rate = {arch.dropout_rate}",
      f"transformer_layers.DenseReluDense.activation = {activation}",
      "transformer.Unitransformer.shared_embedding_and_softmax_weights = "
      f"{arch.tied}",
      "transformer.Unitransformer.positional_embedding = False",
      f"transformer.sublayer_rms_norm.epsilon = {arch.epsilon}",
      *relative_position_bias("transformer_layers.SelfAttention", arch),
      f"utils.get_variable_dtype.master_dtype = '{dtype}'"]
  if arch.decoder_layers not in (0, arch.encoder_layers):
    lines.append("decoder/transformer.make_layer_stack.num_layers = "
                 f"{arch.decoder_layers}")
  if -(-tokens.size // _DIVISOR) * _DIVISOR != arch.vocab_size:
    # With this divisor Mesh TensorFlow rounds the size of the vocabulary up to exactly
    # this size. In an encoder alone, the outputs of a classifier are not rounded.
    scope = "" if arch.decoder_layers else "encoder/"
    lines.append(
        f"{scope}transformer.Unitransformer.vocab_divisor = {arch.vocab_size}")
  return "\n".join(lines) + "\n"


def relative_position_bias(layer: str, arch: architecture.Architecture) -> list[str]:
  """Returns the bindings of T5's relative position bias, for a class of layers."""
  return [f"{layer}.relative_attention_type = 'bias_shared'",
          f"{layer}.relative_attention_num_buckets = {arch.buckets}"]


def operative(arch: architecture.Architecture, blocks: architecture.Blocks, dtype: str,
              tokens: tokenizers.Tokenizer, folder: str) -> str:
  """Returns all bindings: those of `stock`, of our layers and of the vocabulary.

  Args:
    arch: the model without its self-attention.
    blocks: the self-attention of each block.
    dtype: the dtype of the checkpoint, "float32" or "bfloat16".
    tokens: the vocabulary.
    folder: the absolute path of the folder where the model will be.
  """
  lines = ["import synthesizer_mtf", "",
           *relative_position_bias("SyntheticAttention", arch),
           *tokens.bindings(folder)]
  if any(layer.scope == "SyntheticAttention" for layer in blocks.values()):
    for stack, count in arch.stacks.items():
      lines += _attention(arch, stack, [blocks[stack, block] for block in range(count)])
  if not arch.decoder_layers:
    lines.append("make_bitransformer.bitransformer_cls = @EncoderClassifier")
  if arch.classifier:
    lines += [f"EncoderClassifier.pooling = {arch.classifier.pooling!r}",
              f"EncoderClassifier.hidden_sizes = {list(arch.classifier.hidden_sizes)}"]
  return stock(arch, dtype, tokens) + "\n" + "\n".join(lines) + "\n"


def _attention(arch, stack, layers):
  """Returns the bindings that choose the self-attention of a stack."""
  own = [_parameters(layer) for layer in layers]
  together: dict[str, set] = {}
  for bindings in own:
    for name, value in bindings:
      together.setdefault(name, set()).add(repr(value))
  if all(len(values) == 1 for values in together.values()):
    notations = [layer.notation for layer in layers]
    same = len(set(notations)) == 1
    default = {name: repr(value) for name, value in _defaults(arch)}
    return [f"{stack}/synthesizer_stack.attention = "
            f"{(notations[0] if same else notations)!r}",
            *(f"{stack}/{name} = {value}" for name, (value,) in together.items()
              if default.get(name) != value)]
  # Blocks differ in parameters of the same name, so each has a scope of its own.
  scopes = [f"{stack}/block_{block:03d}" for block in range(len(layers))]
  lines = [f"{stack}/synthesizer_stack.attention = "
           f"[{', '.join(f'@{scope}/SyntheticAttention' for scope in scopes)}]"]
  for scope, layer, bindings in zip(scopes, layers, own):
    parts = layer.description["synthesizers"]
    made = [f"@{scope}/part_{i}/{_class(part)}()" for i, part in enumerate(parts)]
    lines.append(f"{scope}/SyntheticAttention.synthesizers = [{', '.join(made)}]")
    lines += [f"{scope}/{name} = {value!r}" for name, value in bindings
              if name.startswith(("SyntheticAttention.", "Mixture."))]
    lines += [f"{scope}/part_{i}/{_class(part)}.{name} = {value!r}"
              for i, part in enumerate(parts) for name, value in part.items()
              if name != "name"]
  return lines


def _parameters(layer):
  """Returns (name, value) of all parameters of a layer and its parts."""
  described = layer.description
  return [
      ("SyntheticAttention.relative_attention_type", described.get("relative_bias")),
      ("SyntheticAttention.softmax", described.get("softmax", True)),
      ("SyntheticAttention.num_heads", layer.heads),
      ("SyntheticAttention.key_value_size", layer.d_kv),
      ("SyntheticAttention.dropout_rate", layer.dropout_rate),
      ("Mixture.weights", described.get("weights", "per_head")),
      *((f"{_class(part)}.{name}", value) for part in described["synthesizers"]
        for name, value in {**attention.DEFAULTS[part["name"]], **part}.items()
        if name != "name")]


def _defaults(arch):
  """Returns what `_parameters` returns for T5, where gin needs no binding for it."""
  yield "SyntheticAttention.softmax", True
  yield "SyntheticAttention.num_heads", arch.heads
  yield "SyntheticAttention.key_value_size", arch.d_kv
  yield "SyntheticAttention.dropout_rate", arch.dropout_rate
  yield "Mixture.weights", "per_head"
  for name, parameters in attention.DEFAULTS.items():
    for parameter, value in parameters.items():
      if value in (None, False):
        yield f"{_class({'name': name})}.{parameter}", value


def _class(part):
  return functions.SYNTHESIZING_FUNCTIONS[part["name"]].__name__
