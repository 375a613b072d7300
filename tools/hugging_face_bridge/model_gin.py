"""The gin files of an imported model."""

from synthesizer_mtf.tools.hugging_face_bridge import architecture
from synthesizer_mtf.tools.hugging_face_bridge import tokenizers

# The gin file for T5's own command, which does not know our parameters.
STOCK = "stock_t5.gin"

# The gin file that the tools read to find a folder's model.
OPERATIVE = "operative_config.gin"

# Mesh TensorFlow rounds sizes of vocabularies up to a multiple of this.
_DIVISOR = 128


def stock(arch: architecture.Architecture, dtype: str,
          tokens: tokenizers.Tokenizer) -> str:
  """Returns the bindings of T5 and Mesh TensorFlow that make the model.

  Args:
    arch: an `Architecture`.
    dtype: the dtype of the checkpoint, "float32" or "bfloat16".
    tokens: a `Tokenizer`.
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


def operative(arch: architecture.Architecture, dtype: str,
              tokens: tokenizers.Tokenizer, folder: str) -> str:
  """Returns all bindings: those of `stock`, of our layers and of the vocabulary.

  Args:
    arch: an `Architecture`.
    dtype: the dtype of the checkpoint, "float32" or "bfloat16".
    tokens: a `Tokenizer`.
    folder: the folder where the model will be, an absolute path.
  """
  lines = ["import synthesizer_mtf", "",
           *relative_position_bias("SyntheticAttention", arch),
           *tokens.bindings(folder)]
  if not arch.decoder_layers:
    lines.append("make_bitransformer.bitransformer_cls = @EncoderClassifier")
  return stock(arch, dtype, tokens) + "\n" + "\n".join(lines) + "\n"
