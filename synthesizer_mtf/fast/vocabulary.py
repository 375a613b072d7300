"""T5's embedding and loss, which read the vocabulary instead of multiplying with it.

Mesh TensorFlow looks up tokens by a product with one-hot rows of the whole vocabulary,
forward and backward. Its cross entropy writes several tensors
[batch, length, vocabulary]. With T5's 32,128 ids that is more work than all attention
of a small model. If every processor holds the whole vocabulary, `lookup.py` and
`cross_entropy.py` read and write entries instead. Variables, losses and gradients stay
the same. On TPUs, and if the mesh splits the vocabulary, products are better, and Mesh
TensorFlow's own code stays.
"""

import copy

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import cross_entropy
from synthesizer_mtf.fast import lookup
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops


class TokenEmbedding(transformer.VocabEmbedding):
  """T5's `VocabEmbedding` without one-hot rows; `of` makes it.

  Variables: `embedding` [vocab, d_model] as T5 stores it.
  """

  @classmethod
  def of(cls, embedding: transformer.VocabEmbedding) -> "TokenEmbedding":
    """Makes an embedding with the variable and the options of a stock one."""
    fast = cls.__new__(cls)
    fast.__dict__.update(vars(embedding))
    return fast

  def ids_to_embedding(self, ids: mtf.Tensor,
                       context: transformer.Context) -> mtf.Tensor:
    """The rows of the ids: <float>[batch, length, d_model].

    Args:
      ids: <int32>[batch, length]; `length` is absent in incremental mode.

    Returns:
      a tensor with the activations' dtype; zeros for ids outside the vocabulary.
    """
    table, vocab = self._embedding_weights, self._vocab_dim
    lead = table.shape.dims[:table.shape.dims.index(vocab)]
    if ids.shape.dims[:len(lead)] != lead or not _is_whole(context.model, ids, vocab):
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

    Returns:
      a tensor with the dtype of hidden.
    """
    table = self._embedding_weights
    if not self._scale_variable_like_classifier_weights:
      hidden *= self._output_dim.size ** -0.5
    if isinstance(context, caches.StepContext):
      dims = table.shape.dims
      transposed = loops.once(
          lambda: mtf.transpose(table, dims[:-2] + dims[:-3:-1]))
      return mtf.einsum([hidden, transposed], reduced_dims=[self._output_dim])
    return _product(hidden, table, self._output_dim, self._vocab_dim)


class LogitsOperation(mtf.EinsumOperation):
  """The product of hidden activations with a table of the vocabulary: the logits."""


def _product(hidden, table, d_model, vocab):
  """<float>[batch, length, vocab], which `Reader` knows as a product."""
  return LogitsOperation(
      [hidden, table], (hidden.shape - d_model) + vocab).outputs[0]


class Reader(transformer.Unitransformer):
  """A `Unitransformer` that reads the rows of ids; `fast/models.py` makes it."""

  def _call_internal(self, context, inputs, targets=None):
    context = copy.copy(context)  # With the same lists of losses and states.
    context.shared_params = {
        **context.shared_params, "embedding": self._embedding(context)}
    if isinstance(context, caches.StepContext):
      return super(Reader, self._with_positions(context))._call_internal(
          context, inputs, targets)
    if (targets is None or context.losses is None or self.output_vocab_dim is None or
        self.shared_embedding_and_softmax_weights or self.ensemble_dim or
        mtf.layers.unit_scaling_convention()):
      return super()._call_internal(context, inputs, targets)
    # The loss has to know the factors of the logits, which Mesh would multiply.
    without_logits = copy.copy(self)
    without_logits.output_vocab_dim = None
    hidden = transformer.Unitransformer._call_internal(without_logits, context, inputs)
    d_model, vocab = hidden.shape.dims[-1], self.output_vocab_dim
    kernel = mtf.layers.get_dense_kernel_weights(
        hidden, [vocab], [d_model], [], None, "logits", context.variable_dtype)
    logits = _product(hidden, kernel, d_model, vocab)
    context.losses.append(self._compute_loss(context, logits, targets, vocab))
    return logits

  def _embedding(self, context):
    """The embedding of this call; one that is not Mesh's `VocabEmbedding` stays."""
    embedding = context.shared_params.get("embedding")
    if embedding is None:
      embedding = transformer.get_vocab_embedding_cls()(
          context.mesh, self.input_vocab_dim, self.model_dim, context.variable_dtype,
          name="embedding", ensemble_dim=self.ensemble_dim)
    if type(embedding) is not transformer.VocabEmbedding:
      return embedding
    return TokenEmbedding.of(embedding)

  def _with_positions(self, context):
    """The model of a decoding step, which reads one row of the position embedding."""
    if not self.positional_embedding or self.sinusoid_positional_embedding or (
        self.ensemble_dim) or not _is_whole(
            self, context.position, self.max_length_dim):
      return self
    table = context.shared_params.get("positional_embedding")
    if table is None:
      table = mtf.layers.embedding_weights(
          context.mesh, self.max_length_dim, self.model_dim, context.variable_dtype,
          "positional_embedding")
    model = copy.copy(self)
    model.positional_embedding = False
    model.layer_stack = _Positioned(self.layer_stack, table, self.max_length_dim)
    return model

  def _compute_loss(self, context, logits, targets, output_vocab_dim):
    if (self._loss_fn or not _is_whole(self, logits, output_vocab_dim) or
        set(targets.shape.dims) != set((logits.shape - output_vocab_dim).dims)):
      return super()._compute_loss(context, logits, targets, output_vocab_dim)
    return mean_loss(self, context, logits, targets, output_vocab_dim)


def mean_loss(model: transformer.Unitransformer, context: transformer.Context,
              logits: mtf.Tensor, targets: mtf.Tensor,
              vocabulary: mtf.Dimension) -> mtf.Tensor:
  """Mesh's loss of a model, <float>[] in the dtype of the logits.

  Args:
    model: the model whose smoothing, z_loss and number of tokens count.
    context: of the call.
    logits: <float>[batch, length, vocabulary]
    targets: <int32>[batch, length]; 0 is padding.
    vocabulary: a dimension of the logits, which no layout splits.
  """
  off_value = model.label_smoothing / vocabulary.size
  loss = cross_entropy.cross_entropy(
      logits, mtf.maximum(targets, 0), vocabulary,
      1.0 - model.label_smoothing + off_value, off_value,
      model.z_loss if context.train else 0.0, _factors(logits, targets))
  counts = mtf.greater(targets, 0)
  if model.loss_on_targets_only:
    counts = mtf.logical_and(counts, mtf.logical_not(
        transformer.delimited_lm_inputs_mask(targets)))
  total = mtf.reduce_sum(loss * mtf.cast(counts, loss.dtype))
  return total / model.loss_denominator(targets, context.num_microbatches)


class _Positioned:
  """A stack of layers that first adds the embeddings of the positions."""

  def __init__(self, layer_stack, table, rows):
    self._layer_stack, self._table, self._rows = layer_stack, table, rows

  def call(self, context, x):
    positions = lookup.lookup(self._table, context.position, self._rows)
    return self._layer_stack.call(context, x + positions)


def _factors(logits, ids):
  """[hidden, table] if this module has multiplied them, and each id has a hidden."""
  made = logits.operation
  if isinstance(made, LogitsOperation) and (
      set(ids.shape.dims) <= set(made.inputs[0].shape.dims)):
    return made.inputs
  return []


def _is_whole(model, tensor, vocab):
  """Whether each processor holds the whole vocabulary, and products are slower."""
  return splits.is_whole(model, vocab) and not splits.is_on_tpu(tensor.mesh)
