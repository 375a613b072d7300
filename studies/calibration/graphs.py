"""The graph and the data of `calibrate`, with what measuring an attention needs.

Gradients, tensors that a study makes in the graph, the encoder's output, and held-out
texts that come once.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import dataset
import numpy as np
import seqio
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
import tensorflow.compat.v1 as tf


class Graph(reading.Graph):
  """See the module."""

  def __init__(self, spec: Mapping[str, tuple[int, int]], summed: bool = True,
               differentiated: Sequence[str] = ()) -> None:
    """Builds the graph.

    Args:
      spec: as for `reading.Graph`.
      summed: as for `reading.Graph`.
      differentiated: the names of the variables that `gradients` is for.
    """
    self._differentiated = differentiated
    super().__init__(spec, summed)

  def _further(self, model, losses):
    variables = {v.name: v for v in model.graph.all_variables}
    return dict(zip(self._differentiated, mtf.gradients(
        [mtf.reduce_sum(losses[0])],
        [variables[name].outputs[0] for name in self._differentiated]))
                ) if self._differentiated else {}

  def define(self, make: Callable[[dict[str, moments.Attention]], Any]) -> Any:
    """What a function makes of the attention of the layers that are V, in the graph."""
    with self._tf_graph.as_default():
      return make(self._moments.attention)

  def run(self, tensors: Any, batch: reading.Batch,
          values: Mapping[tf.Tensor, np.ndarray] | None = None) -> Any:
    """The values of tensors that `define` has made, for a batch.

    Args:
      tensors: any structure of tensors.
      batch: a batch of the data.
      values: the values of placeholders.
    """
    return self.session.run(tensors, {**self._feeds(batch), **(values or {})})

  def variable(self, name: str) -> np.ndarray:
    """The value of a variable."""
    return self.session.run(self.session.variables[name])

  def encoded(self, batch: reading.Batch) -> np.ndarray | None:
    """<float>[batch, length, d_model]: what the encoder puts out; None without one."""
    if self._moments.encoded is None:
      return None
    return self.session.run(self._moments.encoded, self._feeds(batch))

  def losses(self, batch: reading.Batch, encoded: np.ndarray | None = None,
             ) -> tuple[np.ndarray, np.ndarray]:
    """As those of `reading.Graph`; `encoded` is what the method returns for `batch`."""
    known = {} if encoded is None else {self._moments.encoded: encoded}
    return tuple(self.session.run(self._losses, {**self._feeds(batch), **known}))

  def gradients(self, batch: reading.Batch) -> dict[str, np.ndarray]:
    """The gradients of a batch's log-perplexity for the variables `differentiated`.

    Returns:
      a dict from their names to <float32> of their shapes, in nats per target token.
    """
    (_, tokens), values = self.session.run(
        (self._losses, self._exported), self._feeds(batch))
    return {name: gradient / max(tokens.sum(), 1) for name, gradient in values.items()}


def _once(mixture_or_task_name, sequence_length, vocabulary, dataset_split, seed,
          pack=None):
  """As `mesh_train_dataset_fn`, but each text comes once."""
  del vocabulary
  if pack is None:
    pack = gin_files.bound("mesh_train_dataset_fn.pack", True)
  task = seqio.get_mixture_or_task(mixture_or_task_name)
  data = task.get_dataset(sequence_length, split=dataset_split, seed=seed, num_epochs=1,
                          use_cached=gin_files.bound(
                              "mesh_train_dataset_fn.use_cached", False))
  keys = tuple(key for key in task.output_features if key in data.element_spec)
  return dataset.pack_or_pad(
      data.map(lambda row: {key: row[key] for key in keys}), sequence_length, pack=pack,
      feature_keys=keys, ensure_eos={
          key for key in keys if task.output_features[key].add_eos})


class Data(reading.Data):
  """Batches in which each text of a task comes once."""

  @property
  def dataset_fn(self) -> Callable:
    return _once
