"""TensorBoard summaries of each layer's attention in training.

Their names begin with `attention/` and the layer's name, such as `encoder/block_000`.
The scalars are means over the heads, and over the batch's tokens except padding:

  alpha/NAME: the weight of this part of a mixture.
  entropy: the entropy of a query's weights, in nats.
  distance: the mean distance of a query's keys, weighted by attention, in tokens.

The image shows the weights of the first heads, side by side, for the first example of
the batch. The brightness is the square root of the weight.
"""

from collections.abc import Iterable
from typing import Any

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import utils as mtf_utils
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import masks
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
def train_with_attention_summaries(
    estimator: tf.estimator.Estimator, *args: Any, every_steps: int = 100,
    images: bool = True, image_heads: int = 4, **kwargs: Any) -> Any:
  """Trains as Mesh TensorFlow's `train_model` does, and writes summaries.

  It replaces `train_model` as `utils.run.train_model_fn`. Summaries are computed only
  in the steps that write them. TPUs write scalars in each step, if
  `tpu_estimator_model_fn.tpu_summaries` is True, and never images, as Mesh TensorFlow
  passes only scalars to the host.

  Args:
    estimator: a `CarefulEstimator`.
    *args: arguments of `train_model`.
    every_steps: the interval between summaries, in steps. It applies to all summaries,
      such as the learning rate's.
    images: whether to write images.
    image_heads: the number of heads in an image.
    **kwargs: more arguments of `train_model`.

  Raises:
    ValueError: a parameter is out of range, or steps are split into microbatches,
      whose loop does not hand out tensors.
  """
  name = "train_with_attention_summaries"
  checks.check_whole(f"{name}.every_steps", every_steps)
  checks.check_whole(f"{name}.image_heads", image_heads)
  estimator.configure(save_summary_steps=every_steps)
  with intermediates.capture(AttentionSummaries(image_heads if images else 0)):
    return utils.train_model(estimator, *args, **kwargs)


class AttentionSummaries(intermediates.Capture):
  """Makes the summaries of all layers that are called in training."""

  def __init__(self, image_heads: int = 4):
    """Takes the number of heads in an image; 0 for no images."""
    self._image_heads = image_heads

  def capture_alpha(self, alpha: mtf.Tensor,
                    synthesizers: list[base.SynthesizingFunction]) -> None:
    """See the base class."""
    parts = alpha.shape.dims[-1]
    alpha = mtf.reduce_mean(alpha, output_shape=[parts])
    names = unique_names(map(functions.part_name, synthesizers))
    for name, value in zip(names, mtf.unstack(alpha, parts)):
      _scalar(f"alpha/{name}", value)

  def capture_weights(self, weights: mtf.Tensor, mask: masks.AttentionMask,
                      inputs: attention_inputs.AttentionInputs) -> None:
    """See the base class."""
    if not inputs.context.train:
      return
    _check_microbatches(inputs.context.num_microbatches)
    weights = intermediates.normalized(weights, mask)
    queries = intermediates.is_query(inputs)
    _scalar("entropy", _mean(_entropy(weights, inputs), queries))
    _scalar("distance", _mean(_distance(weights, inputs), queries))
    if self._image_heads:
      self._image(weights, inputs)

  def _image(self, weights, inputs):
    for dim in inputs.batch_dims:
      if dim in weights.shape.dims:
        first = mtf.zeros(weights.mesh, [], tf.int32)
        weights = mtf.gather(weights, first, dim)
    weights = mtf.transpose(
        weights, [inputs.heads, inputs.length, inputs.memory_length])
    tag = f"attention/{intermediates.layer_name()}/heads"

    def write(array, is_tpu):
      del is_tpu
      # A bright line separates the heads.
      array = tf.pad(tf.sqrt(array[:self._image_heads]),
                     [[0, 0], [0, 0], [0, 1]], constant_values=1.)
      with tf.name_scope(None):
        tf.summary.image(
            tag, tf.concat(tf.unstack(array), axis=-1)[None, ..., None],
            max_outputs=1)

    intermediates.CaptureOperation([weights], write, on_tpu=False)


def _check_microbatches(number):
  if number > 1:
    parameter = "serialize_num_microbatches.tokens_per_microbatch_per_replica"
    raise checks.Error(
        f"`{parameter}` splits each step into {number} microbatches, whose "
        "attention cannot be summarized; raise it, or leave out "
        "`utils.run.train_model_fn = @train_with_attention_summaries`.")


def unique_names(names: Iterable[str]) -> list[str]:
  """Appends the index to names that occur again, as in R, R.1."""
  seen = []
  for index, name in enumerate(names):
    seen.append(f"{name}.{index}" if name in seen else name)
  return seen


def _entropy(weights, inputs):
  """<float32>[batch, heads, length]"""
  return -mtf.reduce_sum(
      weights * mtf.log(mtf.maximum(weights, 1e-30)),
      reduced_dim=inputs.memory_length)


def _distance(weights, inputs):
  """<float32>[batch, heads, length]"""
  def indices(dim):
    return mtf.range(weights.mesh, dim, tf.float32)

  distance = mtf.abs(mtf.add(
      indices(inputs.length), -indices(inputs.memory_length),
      output_shape=[inputs.length, inputs.memory_length]))
  return mtf.einsum([weights, distance], output_shape=(
      weights.shape - inputs.memory_length))


def _mean(values, queries):
  """The mean over heads and all tokens except padding, a scalar."""
  if queries is None:
    return mtf.reduce_mean(values)
  values = mtf.reduce_mean(values, output_shape=queries.shape)
  return mtf.reduce_sum(values * queries) / mtf.maximum(
      mtf.reduce_sum(queries), 1)


def _scalar(name, value):
  """Summarizes a scalar of the layer that is being called."""
  tag = f"attention/{intermediates.layer_name()}/{name}"

  def write(scalar, is_tpu):
    if is_tpu:
      tf.add_to_collection(
          mtf_utils.SCALAR_SUMMARIES_COLLECTION_KEY, (tag, scalar))
      return
    with tf.name_scope(None):
      tf.summary.scalar(tag, scalar)

  intermediates.CaptureOperation([value], write)
