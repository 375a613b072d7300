"""The model that gin describes, in a graph of Mesh TensorFlow.

    model = building.Model()
    features = model.feed({"inputs": "batch:4,length:512",
                           "targets": "batch:4,length:128"})
    step = model.train(features, optimize.AdafactorOptimizer, learning_rate=0.01)

T5's model gets the arguments that T5's trainer passes (`tpu_estimator_model_fn` of
mesh_tensorflow.transformer.utils). All of it is made in TensorFlow's default graph.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import utils
import numpy as np
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import adafactor
from synthesizer_mtf.t5 import stack
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

Features = Mapping[str, mtf.Tensor]
EVAL, TRAIN = tf.estimator.ModeKeys.EVAL, tf.estimator.ModeKeys.TRAIN


class Step(NamedTuple):
  """What a step computes: its loss, or the ids <int32>[batch, length] that it decodes.

  `updates` change variables, and the body of a loop runs for each of `microbatches`.
  """
  result: mtf.Tensor
  updates: list[mtf.Operation]
  microbatches: int = 1


class Model:
  """The model that gin describes.

  Attributes:
    model_type: the value of `utils.run.model_type`.
    transformer: a `Unitransformer` or `Bitransformer`.
    graph: the `mtf.Graph`; calls of the model add its variables.
    mesh: a `splits.Mesh`.
    fed: a dict from the names of features to their placeholders, <int32>.
  """

  def __init__(self, vocabulary_sizes: tuple[int, int] | None = None,
               model_type: str | None = None, mesh_shape: mtf.Shape | str = "",
               layout: mtf.LayoutRules | str = "",
               dtype: mtf.VariableDType | None = None, placer: Any = None,
               is_on_tpu: bool | None = None) -> None:
    """Builds the model; what is None is what gin binds.

    Args:
      vocabulary_sizes: those of inputs and targets.
      model_type: a value of `utils.run.model_type`.
      mesh_shape: the mesh.
      layout: its layout rules.
      dtype: of variables and activations.
      placer: chooses the devices of variables; None for the first CPU.
      is_on_tpu: as for `splits.Mesh`.
    """
    self.model_type = model_type or gin_files.bound(
        "utils.run.model_type", "bitransformer")
    self._mesh_shape = mtf.convert_to_shape(mesh_shape)
    self._layout = mtf.convert_to_layout_rules(layout)
    self._dtype = dtype or utils.get_variable_dtype()
    self.transformer = stack.build_model(
        self.model_type, *(vocabulary_sizes or _vocabulary_sizes()),
        layout_rules=self._layout, mesh_shape=self._mesh_shape)
    self.graph = mtf.Graph()
    self.mesh = splits.Mesh(self.graph, placer, is_on_tpu)
    self.fed: dict[str, tf.Tensor] = {}
    tf.train.get_or_create_global_step()  # For Adafactor, and annealed attention.

  def feed(self, shapes: Mapping[str, mtf.Shape | str],
           values: Mapping[str, np.ndarray] | None = None) -> Features:
    """Makes placeholders of features; returns the features as the model reads them.

    A "delimited_lm" reads inputs and targets as one sequence, "targets". `values` are
    those of placeholders that are not fed; what depends on constants alone, TensorFlow
    would compute just once.
    """
    features = {}
    for name, shape in shapes.items():
      shape = mtf.convert_to_shape(shape)
      sizes = shape.to_integer_list
      self.fed[name] = (
          tf.placeholder(tf.int32, sizes, name) if values is None else
          tf.placeholder_with_default(tf.constant(values[name], tf.int32), sizes, name))
      features[name] = mtf.import_fully_replicated(
          self.mesh, self.fed[name], shape, name=name)
    if self.model_type == "delimited_lm" and {"inputs", "targets"} <= features.keys():
      return utils._dynamic_text2self(features)
    return features

  def call(self, features: Features, mode: str = EVAL, compute_loss: bool = True,
           microbatches: int = 1) -> tuple[mtf.Tensor, mtf.Tensor | None]:
    """The logits <float>[batch, length, vocab], and the loss or None."""
    def packing(name, prefix=""):
      return {f"{prefix}sequence_id": features.get(f"{name}_segmentation"),
              f"{prefix}position": features.get(f"{name}_position")}

    inputs, targets = features.get("inputs"), features.get("targets")
    if self.model_type in ("lm", "delimited_lm"):
      inputs = transformer.autoregressive_inputs(
          targets, sequence_id=features.get("targets_segmentation"))
    places = (packing("targets")
              if isinstance(self.transformer, transformer.Unitransformer) else
              {**packing("inputs", "encoder_"), **packing("targets", "decoder_"),
               "decoder_subsequence_id": features.get("targets_subsegmentation")})
    return self.transformer.call_simple(
        inputs=inputs, targets=targets, compute_loss=compute_loss, mode=mode,
        variable_dtype=self._dtype, num_microbatches=microbatches, **places)

  def cross_entropy(self, features: Features) -> list[mtf.Tensor]:
    """Of each row, the sum over its target tokens, and their number: <float32>[batch].

    These are the tokens, and this is the negative score, of T5's mode "score".
    """
    logits, targets = self.call(features, compute_loss=False)[0], features["targets"]
    logits = mtf.cast(logits, tf.float32)
    counted = mtf.cast(mtf.greater(targets, 0), tf.float32)
    if self.model_type == "delimited_lm":
      counted *= mtf.cast(mtf.logical_not(
          transformer.delimited_lm_inputs_mask(targets)), tf.float32)
    losses = counted * mtf.layers.softmax_cross_entropy_with_logits(
        logits, targets, logits.shape.dims[-1])
    return [mtf.reduce_sum(t, reduced_dim=targets.shape.dims[-1])
            for t in (losses, counted)]

  def evaluate(self, features: Features) -> Step:
    """The loss of a batch."""
    return Step(self.call(features)[1], [])

  def train(self, features: Features, optimizer: Callable[..., mtf.optimize.Optimizer],
            learning_rate: Any) -> Step:
    """The loss of a batch, and the updates of an optimizer of this class."""
    batch, = (dim for dim in features["targets"].shape if dim.name == "batch")
    microbatches = utils.serialize_num_microbatches(
        batch, {name: fed.shape.as_list()[-1] for name, fed in self.fed.items()},
        self._mesh_shape, self._layout)

    def losses(features):
      return {"loss": self.call(features, TRAIN, True, microbatches)[1]}

    if microbatches > 1:
      gradients, results = mtf.serialize_training_step(
          features, losses, batch, microbatches)
    else:
      results = losses(features)
      gradients = mtf.gradients(
          [results["loss"]], [v.outputs[0] for v in self.graph.trainable_variables])
    make = adafactor.fast(optimizer, self._mesh_shape, self._layout)
    return Step(results["loss"], make(learning_rate=learning_rate).apply_grads(
        gradients, self.graph.trainable_variables), microbatches)

  def decode(self, features: Features, room: int = 0, **options: Any) -> Step:
    """The ids that follow from "inputs".

    A language model may add to them as many tokens as `room` says. The options are
    parameters of `Bitransformer.decode`, which gin binds otherwise.
    """
    inputs = features["inputs"]
    if isinstance(self.transformer, transformer.Unitransformer):
      ids = self.transformer.sample_autoregressive(
          mtf.pad(inputs, [0, room], "length"), variable_dtype=self._dtype,
          remove_partial_sequences=True)
    else:
      ids = self.transformer.decode(inputs, variable_dtype=self._dtype, **options)
    return Step(mtf.anonymize(ids), [])

  def lower(self, mesh_impl: mtf.MeshImpl, autostack: bool = False) -> mtf.Lowering:
    """Lowers the graph for a mesh, once it has all gradients and updates."""
    return mtf.Lowering(self.graph, {self.mesh: mesh_impl}, autostack)


def _vocabulary_sizes():
  vocabulary = mesh_transformer.get_vocabulary()
  return (utils.inputs_vocabulary(vocabulary).vocab_size,
          utils.targets_vocabulary(vocabulary).vocab_size)
