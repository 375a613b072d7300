"""A model in evaluation mode, over batches of a task."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import utils
import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.tools.calibrate import cut_texts
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.model import session
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf
import tqdm

Batch = dict[str, np.ndarray]

_TYPES = ("bitransformer", "lm", "delimited_lm")
_OURS, _STOCK = "/SyntheticAttention/", "/SelfAttention/"


class Graph:
  """The model that gin describes, in a graph and session of its own, on one CPU.

  It computes in float32, without dropout, and has the variables of a checkpoint.

  Attributes:
    layers: a dict from names, such as "encoder/0", to `moments.Layer`.
    shapes: a dict from the names of all variables to their shapes.
    trained: the names of those that an optimizer trains.
    session: the model's `session.Lowered`.
  """

  def __init__(self, spec: Mapping[str, tuple[int, int]], summed: bool = True) -> None:
    """Builds the graph.

    Args:
      spec: the shapes of a batch, (batch, length), by the names of the features.
      summed: whether `sums` adds up the attention of the layers that are V.

    Raises:
      ValueError: gin describes no model, or one of an unknown type.
    """
    model_type = gin_files.bound("utils.run.model_type", "bitransformer")
    if model_type not in _TYPES:
      raise checks.Error(f"`utils.run.model_type` is {model_type!r}, but only "
                         f"{', '.join(_TYPES)} can be calibrated.")
    self._moments = moments.Moments()
    self._tf_graph = tf.Graph()
    with self._tf_graph.as_default():
      self._build(spec, summed)
    self.layers = self._moments.layers
    self.shapes: dict[str, list[int]] = {
        name: v.shape.as_list() for name, v in self.session.variables.items()}
    if self._moments.repeated:
      raise checks.Error(
          f"two layers have the name {self._moments.repeated[0]!r}, so that they share "
          "their attention; only models whose blocks differ can be calibrated.")

  def _build(self, spec, summed):
    model = building.Model(dtype=utils.get_variable_dtype(
        slice_dtype="float32", activation_dtype="float32"))
    features = model.feed({name: f"batch:{batch},length:{length}"
                           for name, (batch, length) in spec.items()})
    with intermediates.capture(self._moments):
      losses = model.cross_entropy(features)
    further = self._further(model, losses)
    self.session = session.Lowered(model)
    self._losses = [self.session.export(t) for t in losses]
    self._exported = {name: self.session.export(t) for name, t in further.items()}
    self._sums = self._moments.sums if summed else {}
    self._fed = model.fed
    self.trained = [v.name for v in model.graph.trainable_variables]

  def _further(self, model: building.Model,
               losses: Sequence[mtf.Tensor]) -> dict[str, mtf.Tensor]:
    """Further tensors of the model; subclasses find them exported, by these names."""
    del model, losses
    return {}

  def restore(self, path: str, new: Mapping[str, Any] | None = None) -> None:
    """Takes the variables of a checkpoint, of T5's own layer, too.

    Args:
      path: the path of the checkpoint.
      new: the values of variables that the checkpoint need not have.

    Raises:
      ValueError: the checkpoint lacks a variable, or has it in another shape.
    """
    self.session.restore(path, names_in(path, self.shapes), new)

  def biases(self) -> dict[str, np.ndarray]:
    """T5's relative position bias of each layer that is V and has it, by its name.

    Returns:
      a dict to <float32>[heads, length, memory_length].
    """
    return self.session.run(self._moments.bias)

  def sums(self, batch: Batch) -> dict[str, moments.Sums]:
    """The sums of a batch over the attention of each layer that is V, by its name."""
    return self.session.run(self._sums, self._feeds(batch))

  def losses(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The log-perplexity of each row of a batch.

    Returns:
      (cross_entropy, tokens), both <float32>[batch]: sums over the target tokens, in
      nats, and the number of these tokens.
    """
    return tuple(self.session.run(self._losses, self._feeds(batch)))

  def _feeds(self, batch):
    return {placeholder: batch[name] for name, placeholder in self._fed.items()}


def names_in(path: str, names: Mapping[str, Any]) -> dict[str, str]:
  """The names of variables in a checkpoint, where T5's own layer may have them.

  Args:
    path: the path of the checkpoint.
    names: the names of the model's variables.
  """
  saved = tf.train.load_checkpoint(path).get_variable_to_shape_map()
  stock = {name: name.replace(_OURS, _STOCK) for name in names}
  return {name: stock[name] if name not in saved and stock[name] in saved else name
          for name in names}


class Data:
  """Batches of a task, as the trainer makes them.

  Attributes:
    name: the task, in words.
    spec: the shapes of a batch, (batch, length), by the names of the features.
  """

  def __init__(self, task: str | None, split: str, batch_size: int,
               pack: bool | None = None, seed: int = 0) -> None:
    """Looks the task up, but reads nothing.

    Args:
      task: the name of a task or mixture; None for what gin trains the model on.
      split: one of its splits, such as "train".
      batch_size: the number of rows of a batch.
      pack: whether rows hold several texts; None for what gin says.
      seed: the seed of the data's order, unless gin has one.

    Raises:
      ValueError: there is no such task or split, or its vocabulary is not the model's.
    """
    self._batch_size, self._split = batch_size, split
    lengths = gin_files.bound("utils.run.sequence_length", None)
    if not isinstance(lengths, Mapping):
      raise checks.Error(
          f"`utils.run.sequence_length` is {lengths!r}; bind the longest sequences, as "
          "in --gin_param=\"utils.run.sequence_length = {'inputs': 512, 'targets': "
          "128}\".")
    self._lengths = dict(lengths)
    longest, most = max(lengths.values()), gin_files.bound(
        "Unitransformer.max_length", None)
    if gin_files.bound("Unitransformer.positional_embedding", True) and (
        most is not None and longest > most):
      raise checks.Error(
          f"the task's sequences have {longest} tokens, but the model has positional "
          f"embeddings of {most}, `Unitransformer.max_length`; shorten "
          "`utils.run.sequence_length`.")
    function = gin_files.bound("utils.run.train_dataset_fn", None)
    name = task or gin_files.bound(
        "mesh_train_dataset_fn.mixture_or_task_name", gin_files.bound(
            "%MIXTURE_NAME", None))
    self._given: dict[str, Any] = {}
    if task or function is None or name is not None:
      names = {"MIXTURE_NAME": "--task"} if task else {}
      if split != "train":
        names["utils.run.dataset_split"] = "--split"
      with checks.calling(names):
        self._check(name)
      function = self.dataset_fn
      self._given = {"mixture_or_task_name": name, "seed": gin_files.bound(
          "mesh_train_dataset_fn.seed", None) or seed}
      if pack is not None:
        self._given["pack"] = pack
    self.name = name or "the model's data"
    self._function = function
    with tf.Graph().as_default():
      data = self._dataset()
      self.spec = {feature: (batch_size, of.shape.as_list()[0])
                   for feature, of in data.element_spec.items()
                   if of.dtype.is_integer and of.shape.rank == 1}

  @property
  def dataset_fn(self) -> Callable:
    """Makes the data set of a task, as `utils.run.train_dataset_fn` does."""
    return mesh_transformer.mesh_train_dataset_fn

  def _check(self, name):
    if name is None:
      raise checks.Error("the model's gin names no task; name one by --task.")
    data_checks.check_task(name, "--task")
    features = seqio.get_mixture_or_task(name).output_features
    data_checks.check_lengths(self._lengths, name, features)
    data_checks.check_vocabularies(name, features, "--task")
    data_checks.check_split(name, self._split)
    data_checks.check_rates(name)
    data_checks.check_cached(name)
    vocabulary = _vocabulary(name)
    for feature, of in {"inputs": utils.inputs_vocabulary(vocabulary),
                        "targets": utils.targets_vocabulary(vocabulary)}.items():
      if feature in features and features[feature].vocabulary != of:
        raise checks.Error(
            f"--task is {name!r}, whose {feature} have another vocabulary than the "
            "model; name a task with the model's vocabulary.")

  def _dataset(self):
    return self._function(
        sequence_length=self._lengths, vocabulary=mesh_transformer.get_vocabulary(),
        dataset_split=self._split, **self._given)

  def batches(self, number: int, what: str = "Reading") -> Iterator[Batch]:
    """Yields batches, with a bar; the same ones in each call.

    Args:
      number: the most batches to yield; data that ends has fewer, and rows of padding
        in the last one.
      what: the words beside the bar.
    """
    rows = cut_texts.rows(lambda: self._dataset().batch(self._batch_size))
    try:
      for batch in tqdm.tqdm(itertools.islice(rows, number), what, number,
                             unit=" batches", mininterval=1):
        yield {name: np.pad(batch[name], [(0, shape[0] - len(batch[name])), (0, 0)])
               for name, shape in self.spec.items()}
    finally:
      rows.close()

  def cut(self, number: int) -> str | None:
    """Says how many of the first texts that `batches` reads are cut; None if none."""
    if "mixture_or_task_name" not in self._given:
      return None
    return cut_texts.sentence(self.name, self._split, self._lengths, number,
                         self._given["seed"])


def _vocabulary(task):
  """The model's vocabulary; that of the task where the model's cannot be read.

  The configurations of T5's checkpoints name a task that today's T5 may not know, or a
  vocabulary that is in cloud storage.
  """
  try:
    chosen = mesh_transformer.get_vocabulary()
    if not any(checks.unreachable(getattr(side(chosen), "sentencepiece_model_file", ""))
               for side in (utils.inputs_vocabulary, utils.targets_vocabulary)):
      return chosen
    why = "cannot be read without a network"
  except ValueError:
    why = "is that of a task that is not registered"
  print(f"The model's vocabulary {why}; that of {task} is taken for it.")
  with gin.unlock_config():
    gin.bind_parameter("t5.models.mesh_transformer.get_vocabulary.mixture_or_task_name",
                       task)
  return mesh_transformer.get_vocabulary()
