"""Builds the programs of the benchmark: T5 models that train, evaluate or decode.

Gin builds each program from T5's model file. Each program has a graph and a session of
its own, so several programs can exist at once and run in turns.
"""

import dataclasses
import os
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
from synthesizer_mtf import gin_files
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import breakdown
from synthesizer_mtf.tools.benchmark import products
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.model import session
import tensorflow.compat.v1 as tf

_LEARNING_RATE = 0.01
_SESSIONS = {"float32": lambda: None, "bfloat16": mixed_precision.session_config}


@dataclasses.dataclass(frozen=True)
class Configuration:
  """Sizes of the model and of the batch; lengths are in tokens."""
  inputs: int = 512
  targets: int = 128
  batch: int = 4
  decode_batch: int = 16
  beam: int = 1  # Hypotheses of the beam search; 1 for greedy decoding.
  num_layers: int = 3
  d_model: int = 256
  num_heads: int = 4
  d_kv: int = 64
  d_ff: int = 1024
  vocabulary: int = 32128  # T5's, rounded up.
  targets_vocabulary: int | None = None  # None for the size of `vocabulary`.
  dropout_rate: float = 0.1
  relative_bias: bool = False
  stock_cross_attention: bool = False
  stock_feed_forward: bool = False
  stock_norm: bool = False
  stock_vocabulary: bool = False
  stock_optimizer: bool = False
  stock_decoding: bool = False
  packed: int = 0  # Examples in a packed row; 0 for rows that are not packed.
  device: str = "cpu:0"

  @property
  def gin_file(self) -> str:
    """T5's model file, with or without its relative position bias."""
    return os.path.join(
        "models", "bi_v1.gin" if self.relative_bias else "bi_bert_base.gin")

  @property
  def bindings(self) -> list[str]:
    """The gin bindings that all rows have."""
    sizes = "num_layers", "d_model", "num_heads", "d_kv", "d_ff", "dropout_rate"
    common = [f"{name} = {getattr(self, name)}" for name in sizes]
    common += [
        f"Unitransformer.max_length = {max(self.inputs, self.targets)}",
        # Without this the length of the output would depend on the random weights.
        "sample_autoregressive.never_end = True",
        "mesh_tensorflow.beam_search.beam_search.stop_early = False",
        f"Bitransformer.decode.decode_length_constant = {self.targets}",
    ]
    common += [f"{parameter} = False"
               for part, parameter in attentions.STOCK_PARTS.items()
               if getattr(self, f"stock_{part}")]
    if self.relative_bias:
      common += [f"{layer}.relative_attention_type = 'bias_shared'" for layer in (
          "SyntheticAttention", "SparseFixed", "SparseStrided",
          "transformer_layers.Synthesizer")]
    return common


class Program:
  """A lowered model in a session, ready to run.

  Attributes:
    sizes: what a table can show beside times. "parameters": the number of trainable
      ones; "multiply_adds": those of all einsums in one run, which are the matrix
      products, and those element-wise products that Mesh TensorFlow writes as einsums.
    attention: the names of the classes that the row put into the model, in the order of
      the blocks.
    operations: the operations of the Mesh TensorFlow graph.
    parts: a dict from operations to parts of a step, which `breakdown.parts` returns.
    session: the model's `session.Lowered`.
  """

  def __init__(self, model: building.Model, step: building.Step, device: str,
               precision: str) -> None:
    """Lowers the model of the default graph for a device, and gives it variables."""
    self._dtype, self._graph = tf.as_dtype(precision), tf.get_default_graph()
    self.session = session.Lowered(model, device, True, _SESSIONS[precision]())
    self.attention = _attention(model.transformer)
    self.operations = model.graph.operations
    self.parts = breakdown.parts(self.operations)
    lowering = self.session.lowering
    self.sizes = {
        "parameters": sum(v.shape.size for v in model.graph.trainable_variables),
        "attention_parameters": sum(
            v.shape.size for v in model.graph.trainable_variables
            if not {*self.attention}.isdisjoint(v.name.split("/"))),
        "multiply_adds": sum(
            value for key, value in lowering.counters if key == "einsum")}
    result = self.session.export(step.result)
    with tf.control_dependencies([
        tf.train.get_global_step().assign_add(1),
        *map(lowering.lowered_operation, step.updates)]):
      self._fetch = tf.identity(result)
    self.session.initialize()

  def run(self) -> np.ndarray:
    """Runs the program once.

    Returns:
      the loss, or when decoding the ids, <int32>[batch, length], as NumPy arrays.

    Raises:
      ArithmeticError: the loss is not finite.
    """
    result = self.session.run(self._fetch)
    if not np.all(np.isfinite(result)):
      raise ArithmeticError("the loss is not finite")
    return result

  def seconds_of_parts(self) -> dict[str, float]:
    """Traces one run; returns the seconds of `breakdown.PARTS` and of the products."""
    stats = self.trace()
    return {**breakdown.seconds(stats, self.parts),
            breakdown.PRODUCTS: breakdown.product_seconds(stats)}

  def trace(self) -> Any:
    """Traces one run; returns TensorFlow's `step_stats`."""
    traced = tf.RunMetadata()
    self.session.run(self._fetch, run_metadata=traced, options=tf.RunOptions(
        trace_level=tf.RunOptions.FULL_TRACE))
    return traced.step_stats

  def seconds_of_bare_products(self) -> float:
    """Returns the seconds that the program's products take when nothing else runs."""
    return products.bare_seconds(self._graph, self._dtype)

  def close(self) -> None:
    self.session.close()


def build(row: attentions.Row, config: Configuration, measure: str) -> Program:
  """Builds the program of one row for one measure.

  Args:
    measure: a key of `MEASURES`.

  Returns:
    a `Program`.
  """
  gin_files.parse(
      [config.gin_file],
      config.bindings + row.bindings(config.inputs, config.targets))
  with tf.Graph().as_default():
    if row.precision == "bfloat16":
      mixed_precision.mark_graph()
    tf.set_random_seed(0)
    model = building.Model(
        (config.vocabulary, config.targets_vocabulary or config.vocabulary),
        dtype=mtf.VariableDType(tf.float32))
    return Program(model, MEASURES[measure](model, config), config.device,
                   row.precision)


def _attention(model):
  """Returns the names of the classes of each block's first layer."""
  layers = model.encoder.layer_stack.layers + model.decoder.layer_stack.layers
  return [type(layer).__name__ for layer in layers
          if layer.name.endswith("layer_000")]


def _train(model, config):
  return model.train(_fed(model, _batch(config)), optimize.AdafactorOptimizer,
                     _LEARNING_RATE)


def _evaluate(model, config):
  return model.evaluate(_fed(model, _batch(config)))


def _decode(model, config):
  """Decodes `targets` tokens for each example."""
  inputs = _tokens(config.vocabulary, config.decode_batch, config.inputs)
  return model.decode(_fed(model, {"inputs": inputs}), beam_size=config.beam,
                      max_decode_length=config.targets)


MEASURES = {"train": _train, "eval": _evaluate, "decode": _decode}


def _fed(model, batch):
  return model.feed({name: f"batch:{len(ids)},length:{ids.shape[1]}"
                     for name, ids in batch.items()}, batch)


def _batch(config):
  """Returns the features of a batch, <int32>[batch, length]."""
  inputs = _tokens(config.vocabulary, config.batch, config.inputs)
  targets = _tokens(config.targets_vocabulary or config.vocabulary, config.batch,
                    config.targets)
  return {"inputs": inputs, "targets": targets,
          **_packing(config, "inputs", config.inputs),
          **_packing(config, "targets", config.targets)}


def _tokens(vocabulary, batch, length):
  """<int32>[batch, length]: random tokens; the first row ends in padding."""
  ids = np.random.RandomState(0).randint(2, vocabulary, (batch, length))
  ids[0, length * 3 // 4:] = 0
  return ids


def _packing(config, name, length):
  """Returns the ids and positions of the examples in each row, as T5 packs them.

  All examples have about the same length. The first row ends in padding, as its tokens
  do.
  """
  if not config.packed:
    return {}
  generator = np.random.RandomState(0)
  ids = np.zeros((config.batch, length), np.int32)
  positions = np.zeros_like(ids)
  for row in range(config.batch):
    end = length * 3 // 4 if row == 0 else length
    mean = end / config.packed
    cuts = [round(mean * (i + generator.uniform(-0.25, 0.25)))
            for i in range(1, config.packed)]
    for i, (start, stop) in enumerate(zip([0, *cuts], [*cuts, end])):
      ids[row, start:stop] = i + 1
      positions[row, start:stop] = np.arange(stop - start)
  return {f"{name}_segmentation": ids, f"{name}_position": positions}
