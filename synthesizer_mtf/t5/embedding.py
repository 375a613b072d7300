"""Embeddings and losses that read the vocabulary instead of multiplying with it.

Mesh TensorFlow looks up tokens by a product with one-hot rows of the whole vocabulary,
forward and backward. Its cross entropy writes several tensors
[batch, length, vocabulary]. With T5's 32,128 ids that is more work than all attention
of a small model. If gin chooses an attention, and every processor holds the whole
vocabulary, `fast/lookup.py` and `fast/cross_entropy.py` read and write entries instead.
Variables, losses and gradients stay the same. On TPUs, and if the mesh splits the
vocabulary, products are better, and Mesh TensorFlow's own code stays.
"""

from collections.abc import Callable
import functools
import inspect

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import patches
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import cross_entropy
from synthesizer_mtf.fast import decoding_state
from synthesizer_mtf.fast import lookup
from synthesizer_mtf.t5 import stack


@gin.configurable(module="synthesizer_mtf")
def synthesizer_vocabulary(fast: bool = True) -> bool:
  """Whether embeddings and losses are computed without one-hot rows.

  Args:
    fast: False leaves both to Mesh TensorFlow. A user's own class in
      `get_vocab_embedding_cls.cls` has the same effect.

  Returns:
    fast, if `synthesizer_stack.attention` chooses an attention; else False.

  Raises:
    ValueError: fast is not a boolean.
  """
  return stack.is_enabled("synthesizer_vocabulary.fast", fast)


class TokenEmbedding(transformer.VocabEmbedding):
  """T5's `VocabEmbedding` without one-hot rows, with the same gin bindings.

  Variables: `embedding` [vocab, d_model] as T5 stores it.
  """

  def ids_to_embedding(self, ids: mtf.Tensor,
                       context: transformer.Context) -> mtf.Tensor:
    """The rows of the ids: <float>[batch, length, d_model].

    Args:
      ids: <int32>[batch, length]; `length` is absent in incremental mode.
      context: a `transformer.Context`.

    Returns:
      a tensor with the activations' dtype; zeros for ids outside the vocabulary.
    """
    table, vocab = self._embedding_weights, self._vocab_dim
    lead = table.shape.dims[:table.shape.dims.index(vocab)]
    if (ids.shape.dims[:len(lead)] != lead or splits.is_on_tpu(ids.mesh) or
        not splits.is_whole(context.model, vocab)):
      return super().ids_to_embedding(ids, context)
    embedding = lookup.lookup(table, ids, vocab)
    if self._scale_variable_like_classifier_weights:
      embedding *= self._output_dim.size ** 0.5
    return embedding

  def hidden_to_logits(self, hidden: mtf.Tensor,
                       context: transformer.Context) -> mtf.Tensor:
    """The logits <float>[batch, length, vocab].

    A decoding step multiplies few tokens with the whole table. It reads the transposed
    table row by row. A loop transposes the table once, before the first step.

    Args:
      hidden: <float>[batch, length, d_model]; `length` is absent in incremental mode.
      context: a `transformer.Context`.

    Returns:
      a tensor with the dtype of hidden.
    """
    if not isinstance(context, decoding_state.StepContext):
      return super().hidden_to_logits(hidden, context)
    if not self._scale_variable_like_classifier_weights:
      hidden *= self._output_dim.size ** -0.5
    dims = self._embedding_weights.shape.dims
    transposed = mtf.transpose(self._embedding_weights, dims[:-2] + dims[:-3:-1])
    return mtf.einsum([hidden, transposed], reduced_dims=[self._output_dim])


def apply() -> None:
  """Makes Mesh TensorFlow use this embedding and loss if gin chooses an attention.

  A second call changes nothing.
  """
  chosen = inspect.unwrap(transformer.get_vocab_embedding_cls)
  patches.assign("cls", chosen, (_chosen_embedding,))
  patches.wrap("softmax_cross_entropy_with_logits", mtf.layers, _of_ids)


def _chosen_embedding(*args, **kwargs):
  """The default of `get_vocab_embedding_cls`."""
  make = TokenEmbedding if synthesizer_vocabulary() else transformer.VocabEmbedding
  return make(*args, **kwargs)


def _of_ids(original: Callable[..., mtf.Tensor]) -> Callable[..., mtf.Tensor]:
  @functools.wraps(original)
  def wrapped(logits, targets, vocab_dim, z_loss=0.0):
    ids, on_value, off_value = _ids(targets, vocab_dim)
    if ids is None or not _is_read(logits.mesh, vocab_dim.name) or (
        set(ids.shape.dims) != set((logits.shape - vocab_dim).dims)):
      return original(logits, targets, vocab_dim, z_loss)
    return cross_entropy.cross_entropy(
        logits, ids, vocab_dim, on_value, off_value, z_loss)

  return wrapped


def _is_read(mesh, name):
  """Whether a `TokenEmbedding` has read rows of a dimension with this name.

  It does so only if no layout splits the dimension, and layouts go by names.
  """
  return any(isinstance(op, lookup.LookupOperation) and op.rows.name == name
             for op in mesh.graph.operations)


def _ids(targets, vocab_dim):
  """Returns (ids, target of the id, target of all other ids).

  The ids are None if the targets are neither ids nor made by `mtf.one_hot`.
  """
  if targets.dtype.is_integer:
    return targets, 1.0, 0.0
  made = targets.operation
  if type(made) is mtf.OneHotOperation and (
      targets.shape.dims[-1] == vocab_dim):
    return made.inputs[0], made._on_value, made._off_value
  return None, None, None
