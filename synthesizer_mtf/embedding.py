"""Embeddings and losses that read the vocabulary instead of multiplying with it.

Mesh TensorFlow looks a token up as a product with one-hot rows of the whole
vocabulary, forward and backward, and its cross entropy writes several tensors
[batch, length, vocabulary]. With T5's 32,128 ids that is more work than all
attention of a small model. Where an attention is chosen by gin, and every processor
holds the whole vocabulary, the same is read and written instead (`ops/lookup.py`,
`ops/cross_entropy.py`): the same variables, losses and gradients. Where the
vocabulary is split over the mesh, and on TPUs, products are the better way, and
Mesh TensorFlow's own stay.
"""

import inspect

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import patches
from synthesizer_mtf import stack
from synthesizer_mtf.context import splits
from synthesizer_mtf.ops import cross_entropy
from synthesizer_mtf.ops import lookup


@gin.configurable(module="synthesizer_mtf")
def synthesizer_vocabulary(fast: bool = True) -> bool:
  """Whether embeddings and losses are computed without one-hot rows.

  Args:
    fast: False leaves both to Mesh TensorFlow. So does a class of the user's own
      in `get_vocab_embedding_cls.cls`.

  Returns:
    fast, where an attention is chosen by `synthesizer_stack.attention`; else
    False.

  Raises:
    ValueError: fast is no boolean.
  """
  return stack.is_faster("synthesizer_vocabulary.fast", fast)


class TokenEmbedding(transformer.VocabEmbedding):
  """T5's `VocabEmbedding`, which also takes its gin bindings.

  Variables: `embedding` [vocab, d_model] as T5 stores it.
  """

  def ids_to_embedding(self, ids: mtf.Tensor,
                       context: transformer.Context) -> mtf.Tensor:
    """The rows of the ids: <float>[batch, length, d_model].

    Args:
      ids: <int32>[batch, length]; `length` is absent in incremental mode.
      context: a `transformer.Context`.

    Returns:
      a tensor with the activations' dtype; zeros for ids of no token.
    """
    table, vocab = self._embedding_weights, self._vocab_dim
    lead = table.shape.dims[:table.shape.dims.index(vocab)]
    if ids.shape.dims[:len(lead)] != lead or not _is_read(
        context.model, vocab, ids.mesh):
      return super().ids_to_embedding(ids, context)
    embedding = lookup.lookup(table, ids, vocab)
    if self._scale_variable_like_classifier_weights:
      embedding *= self._output_dim.size ** 0.5
    return embedding


def loss(model: transformer.Unitransformer, context: transformer.Context,
         logits: mtf.Tensor, targets: mtf.Tensor,
         vocab: mtf.Dimension) -> mtf.Tensor:
  """The loss of `Unitransformer`, which takes the ids as they are where it can.

  Args:
    model: has the label smoothing, the z-loss and the denominator.
    context: a `transformer.Context`.
    logits: <float>[batch, length, vocab]
    targets: <int32>[batch, length]; ids of 0 or below have no loss.
    vocab: the dimension of the vocabulary.

  Returns:
    a scalar, of float32 or the activations' dtype.
  """
  # As Mesh TensorFlow's own, `Unitransformer._compute_loss`.
  off = model.label_smoothing / vocab.size
  on = 1.0 - model.label_smoothing + off
  z_loss = model.z_loss if context.train else 0.0
  ids = mtf.maximum(targets, 0)
  # A class of the user's own turns off both.
  ours = transformer.get_vocab_embedding_cls() is _chosen_embedding
  if ours and synthesizer_vocabulary() and _is_read(model, vocab, logits.mesh):
    losses = cross_entropy.cross_entropy(logits, ids, vocab, on, off, z_loss)
  else:
    losses = mtf.layers.softmax_cross_entropy_with_logits(
        logits, mtf.one_hot(ids, vocab, dtype=context.activation_dtype, on_value=on,
                            off_value=off), vocab, z_loss=z_loss)
  weights = mtf.cast(mtf.greater(targets, 0), context.activation_dtype)
  if model.loss_on_targets_only:
    weights *= mtf.cast(
        mtf.logical_not(transformer.delimited_lm_inputs_mask(targets)),
        context.activation_dtype)
  return mtf.reduce_sum(losses * weights) / model.loss_denominator(
      targets, context.num_microbatches)


def _is_read(model, vocab, mesh):
  """Whether rows of the vocabulary are better read than multiplied with."""
  return splits.is_whole(model, vocab) and not splits.is_on_tpu(mesh)


def apply() -> None:
  """Lets Mesh TensorFlow use both wherever the choice says so; once is enough."""
  patches.set_default(
      "cls", inspect.unwrap(transformer.get_vocab_embedding_cls), _chosen_embedding)
  patches.set_default(
      "loss_fn", inspect.unwrap(transformer.Unitransformer.__init__), loss)


def _chosen_embedding(*args, **kwargs):
  """The default of `get_vocab_embedding_cls`."""
  make = TokenEmbedding if synthesizer_vocabulary() else transformer.VocabEmbedding
  return make(*args, **kwargs)
