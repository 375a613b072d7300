"""Text classifiers with one stack: an encoder, a mean over it, and a softmax.

T5's trainer builds it instead of an encoder-decoder if gin binds

  make_bitransformer.bitransformer_cls = @EncoderClassifier

as `gin/classifier.gin` does, or a `DualEncoderClassifier` of two texts. Its targets are
one id, the class, from a vocabulary such as `tasks.labels.LabelVocabulary`. T5 also
makes a decoder, which has no variables here: it only holds the size of that vocabulary
and parameters of the loss. The classifiers compare models that do not decode, such as
Linformers in section 4.2 of the Synthesizer paper.
"""

from collections.abc import Sequence
from typing import Any

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.t5 import answer_recorder
import tensorflow.compat.v1 as tf


def _mean(seen):
  """1/n for each of the n tokens that are not padding, and 0 for padding."""
  length = seen.shape.dims[-1]
  count = mtf.maximum(mtf.reduce_sum(seen, reduced_dim=length), 1)
  return mtf.cast(seen, tf.float32) / mtf.cast(count, tf.float32)


def _first(seen):
  """1 for the first token, and 0 for all others."""
  length = seen.shape.dims[-1]
  return mtf.one_hot(
      mtf.zeros(seen.mesh, seen.shape - length, tf.int32), length)


_FLOAT32 = mtf.VariableDType(tf.float32)

# Functions from <int32>[batch, length], 1 for tokens and 0 for padding, to the
# weights of the tokens, <float32>[batch, length].
_POOLINGS = {"mean": _mean, "first": _first}


@gin.configurable(module="synthesizer_mtf")
class EncoderClassifier(transformer.Bitransformer):
  """softmax(W pooled), with W: d_model -> classes (arXiv:1810.04805, 4.1).

  With `hidden_sizes`, W follows layers of these sizes, each with a ReLU, as in Long
  Range Arena (arXiv:2011.04006); as in T5 none has a bias.

  Variables: `classifier/kernel` [d_model or hidden, vocab];
  `classifier_hidden_0/kernel` [d_model, hidden_0], ...; those of the encoder are
  named as in T5 (`shared/embedding`, `encoder/block_000/...`), so that
  `utils.run.init_checkpoint` can start from a pre-trained encoder-decoder. As in T5
  the size of the vocabulary is rounded up, so that W splits over `vocab`. Ids that are
  not classes, such as padding, have the probability 0.

  label_smoothing (over the classes only), z_loss and loss_denominator are those of
  T5's `decoder/Unitransformer`.
  """

  def __init__(self, encoder: transformer.Unitransformer,
               decoder: transformer.Unitransformer, pooling: str = "mean",
               hidden_sizes: Sequence[int] = ()):
    """Declares the parameters; T5's `make_bitransformer` passes the first two.

    Args:
      encoder: the stack.
      decoder: a `Unitransformer` whose layers are never called.
      pooling: "mean" of the tokens which are not padding (arXiv:1908.10084,
        section 3), or the "first" token, as in BERT.
      hidden_sizes: sizes of the layers between the pooled tokens and the softmax.

    Raises:
      ValueError: a parameter is out of range.
    """
    super().__init__(encoder, decoder)
    if pooling not in _POOLINGS:
      raise checks.Error(
          f"`{type(self).__name__}.pooling` is {pooling!r} but must be one of "
          f"{', '.join(map(repr, _POOLINGS))}; change it.")
    if encoder.ensemble_dim:
      raise checks.Error(
          f"`Unitransformer.ensemble` is {encoder.ensemble_dim.size}, but "
          "EncoderClassifier trains one model; remove that binding.")
    if not isinstance(hidden_sizes, list | tuple) or not all(
        checks.is_whole(size, 1) for size in hidden_sizes):
      raise checks.Error(
          f"`{type(self).__name__}.hidden_sizes` is {hidden_sizes!r} but must be a "
          "list of positive integers; change it.")
    self.pooling = pooling
    self.hidden_sizes = hidden_sizes

  def call_simple(self, inputs: mtf.Tensor, targets: mtf.Tensor,
                  compute_loss: bool, mode: str = tf.estimator.ModeKeys.TRAIN,
                  variable_dtype: mtf.VariableDType = _FLOAT32,
                  encoder_sequence_id: mtf.Tensor | None = None,
                  num_microbatches: int = 1,
                  **of_decoder: Any) -> tuple[mtf.Tensor, mtf.Tensor | None]:
    """Computes the logits of the classes, and the loss.

    Args:
      inputs: <int32>[batch, length], 0 for padding.
      targets: <int32>[batch, length=1], the class; 0 for no loss.
      compute_loss: whether to return a loss.
      mode: a tf.estimator.ModeKeys, or "score".
      variable_dtype: the dtypes of variables and activations.
      encoder_sequence_id: must be None: nothing is packed.
      num_microbatches: the number of microbatches of a step.

    Returns:
      <float32>[batch, length=1, vocab], and a scalar or None.

    Raises:
      ValueError: rows are packed, or the targets are longer than one id.
    """
    del of_decoder
    if encoder_sequence_id is not None:
      raise checks.Error(
          "`mesh_train_dataset_fn.pack` is True, but EncoderClassifier gives each row "
          "one class; bind `mesh_train_dataset_fn.pack = False`.")
    _check_one_class(inputs, targets)
    logits, encoder_loss = self._logits(
        inputs, compute_loss, mode, variable_dtype, num_microbatches)
    logits = mtf.reshape(logits, targets.shape + self.output_vocab_dim)
    if not compute_loss:
      return logits, None
    z_loss = self.z_loss if mode == tf.estimator.ModeKeys.TRAIN else 0.0
    loss = self._loss(logits, targets, z_loss)
    return logits, encoder_loss + (
        loss / self.loss_denominator(targets, num_microbatches))

  def decode(self, inputs: mtf.Tensor,
             variable_dtype: mtf.VariableDType = _FLOAT32) -> mtf.Tensor:
    """The most probable class, which T5 asks for in modes eval, infer and export.

    Args:
      inputs: <int32>[batch, length], 0 for padding.
      variable_dtype: the dtypes of variables and activations.

    Returns:
      <int32>[batch, length=1]; within `answer_recorder.recording` the most probable
      classes, <int32>[batch, answers, length=1].

    Raises:
      ValueError: more answers are asked for than there are classes.
    """
    logits, _ = self._logits(
        inputs, False, tf.estimator.ModeKeys.PREDICT, variable_dtype, 1)
    recorder = answer_recorder.current()
    if recorder is not None and not splits.is_on_tpu(inputs.mesh):
      most = self._vocab_size - 1
      recorder.check(
          most, f"the targets have {most} classes; ask for at most {most}.")
      return recorder.record(self._best_classes(logits, recorder.number))
    best = mtf.cast(mtf.argmax(logits, self.output_vocab_dim), tf.int32)
    return mtf.reshape(best, best.shape + mtf.Dimension("length", 1))

  def _best_classes(self, logits, number):
    """The most probable classes of logits <float32>[batch, vocab], best first."""
    vocab = self.output_vocab_dim
    scores, ids = mtf.top_k(logits - mtf.reduce_logsumexp(logits, vocab), vocab,
                            mtf.Dimension("beam", number))
    return answer_recorder.Answers(
        mtf.reshape(ids, ids.shape + mtf.Dimension("length", 1)), scores,
        mtf.ones_like(ids))

  def _shared_params(self, mesh, variable_dtype):
    """The encoder's embeddings, with T5's names for shared ones."""
    twins = transformer.Bitransformer(self.encoder, self.encoder)
    return twins._shared_params(mesh, variable_dtype)

  def _logits(self, inputs, compute_loss, mode, variable_dtype,
              num_microbatches):
    """<float32>[batch, vocab], and the losses of the encoder's layers."""
    x, loss = self._pooled(
        inputs, compute_loss, mode, variable_dtype, num_microbatches)
    batch = inputs.shape.dims[:-1]
    for number, size in enumerate(self.hidden_sizes):
      x = mtf.relu(_dense(x, batch, mtf.Dimension(f"hidden_{number}", size),
                          variable_dtype, f"classifier_hidden_{number}"))
    logits = _dense(x, batch, self.output_vocab_dim, variable_dtype, "classifier")
    is_class = self._is_class(inputs.mesh)
    return mtf.cast(logits, tf.float32) + masks.mask_bias(is_class), loss

  def _pooled(self, inputs, compute_loss, mode, variable_dtype, num_microbatches):
    """<float>[batch, d_model], and the losses of the encoder's layers."""
    # Mesh TensorFlow's own ids, by which layers know that rows are not packed.
    seen = mtf.minimum(inputs, 1)
    x, loss = self.encoder.call_simple(
        inputs, None, compute_loss, mode=mode, variable_dtype=variable_dtype,
        sequence_id=seen, num_microbatches=num_microbatches,
        shared_params=self._shared_params(inputs.mesh, variable_dtype))
    pooled = mtf.einsum(
        [mtf.cast(x, tf.float32), _POOLINGS[self.pooling](seen)],
        reduced_dims=[inputs.shape.dims[-1]])
    return mtf.cast(pooled, x.dtype), loss

  def _is_class(self, mesh):
    """<bool>[vocab]: False for padding, and for ids added by rounding the size up."""
    ids = mtf.range(mesh, self.output_vocab_dim, tf.int32)
    return mtf.logical_and(
        mtf.greater(ids, 0), mtf.less(ids, self._vocab_size))

  @property
  def _vocab_size(self):
    return self.decoder.output_vocab_size_unpadded

  def _loss(self, logits, targets, z_loss):
    """The sum of the cross entropies, without targets of 0."""
    smoothing = self.decoder.label_smoothing
    wanted = mtf.one_hot(targets, self.output_vocab_dim)
    if smoothing:
      is_class = mtf.cast(self._is_class(targets.mesh), tf.float32)
      wanted = wanted * (1 - smoothing) + is_class * (
          smoothing / (self._vocab_size - 1))
    losses = mtf.layers.softmax_cross_entropy_with_logits(
        logits, wanted, self.output_vocab_dim, z_loss)
    return mtf.reduce_sum(
        losses * mtf.cast(mtf.greater(targets, 0), tf.float32))


@gin.configurable(module="synthesizer_mtf")
class DualEncoderClassifier(EncoderClassifier):
  """softmax(W f([x1, x2, x1 * x2, x1 - x2])) (arXiv:2011.04006, section 2.2.3).

  x1 and x2 are the pooled texts, which one encoder reads separately: the halves of the
  inputs, each padded at its end, as in `synth_lra_retrieval`. f is the layers of
  `hidden_sizes`. Long Range Arena's code has two layers in f, and by default leaves out
  the product and the difference.

  Variables: those of `EncoderClassifier`, but the first kernel of the head is
  [parts=4, d_model, ...], or parts=2 without the product and the difference.
  """

  def __init__(self, encoder: transformer.Unitransformer,
               decoder: transformer.Unitransformer, pooling: str = "mean",
               hidden_sizes: Sequence[int] = (), interaction: bool = True):
    """Declares the parameters; others are as in the base class.

    Args:
      interaction: whether the head also reads x1 * x2 and x1 - x2.

    Raises:
      ValueError: a parameter is out of range.
    """
    super().__init__(encoder, decoder, pooling=pooling, hidden_sizes=hidden_sizes)
    checks.check_boolean("DualEncoderClassifier.interaction", interaction)
    self.interaction = interaction

  def _pooled(self, inputs, *args):
    """<float>[batch, parts, d_model], and the losses of the encoder's layers."""
    (x1, loss1), (x2, loss2) = (
        EncoderClassifier._pooled(self, text, *args) for text in _halves(inputs))
    parts = [x1, x2, x1 * x2, x1 - x2] if self.interaction else [x1, x2]
    loss = None if loss1 is None else loss1 + loss2
    return mtf.stack(parts, "parts", axis=len(x1.shape) - 1), loss


def _dense(x, batch, size, variable_dtype, name):
  """<float>[batch, size], of x <float>[batch, ...]."""
  return mtf.layers.dense(
      x, size, reduced_dims=(x.shape - batch).dims, use_bias=False,
      variable_dtype=variable_dtype, name=name)


def _check_one_class(inputs, targets):
  length = targets.shape.dims[-1].size
  if length != 1:
    lengths = {"inputs": inputs.shape.dims[-1].size, "targets": 1}
    name = checks.called("utils.run.sequence_length")
    raise checks.Error(
        f"`{name}` gives the targets {length} ids, but for EncoderClassifier they are "
        f"one class; write `{name} = {lengths}`.")


def _halves(inputs):
  """Splits <int32>[batch, length] into two <int32>[batch, length / 2]."""
  length = inputs.shape.dims[-1]
  if length.size % 2:
    raise checks.Error(
        f"`{checks.called('utils.run.sequence_length')}` gives the inputs "
        f"{length.size} ids, but DualEncoderClassifier reads two texts of the same "
        "length; make it even.")
  half = length.size // 2
  return [mtf.slice(inputs, begin, half, length.name) for begin in (0, half)]
