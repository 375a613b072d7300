"""The replacement of Mesh TensorFlow's `get_estimator`, which builds everything.

T5's command and `MtfModel` both call it. This version passes our parts as arguments: a
model with a checked choice of attention, Adafactor in few passes, mixed precision on
CPUs, an estimator that checks checkpoints, and a warm start.
"""

from collections.abc import Callable
import functools
from typing import Any

from absl import logging
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import patches
from synthesizer_mtf.fast import adafactor
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.fast import models as fast_models
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import iterators
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.data import decode_length
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import estimators
from synthesizer_mtf.trainer.model import jax_runtime
from synthesizer_mtf.trainer.model import padding
from synthesizer_mtf.trainer.model import pipeline
from synthesizer_mtf.trainer.model import scoring
from synthesizer_mtf.trainer.watching import validation
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow_estimator.python.estimator.tpu import tpu_config


def get_estimator(
    *, vocabulary: Any, mesh_shape: Any, layout_rules: Any, model_type: str,
    batch_size: int, optimizer: Callable[..., Any] | None, tpu_job_name: str | None,
    iterations_per_loop: int, cluster: Any, use_tpu: str | None,
    init_checkpoint: str | None = None,
    **kwargs: Any) -> estimators.CarefulEstimator:
  """Makes an estimator, as `utils.get_estimator` of Mesh TensorFlow 0.1.21 does.

  The arguments are Mesh TensorFlow's. All `kwargs` go to
  `utils.tpu_estimator_model_fn`.

  Returns:
    an estimator; training starts warm from `init_checkpoint`, or from the
    `warm_start.checkpoint` that gin binds.

  Raises:
    ValueError: no stack of the model uses the attention that gin binds, two
      checkpoints to start from are bound, or the folder's model was trained with
      another vocabulary.
  """
  start = warm_start.chosen(init_checkpoint, strict=bool(stack.choices()))
  record = _vocabularies(vocabulary, kwargs["model_dir"], start)
  model = stack.build_model(
      model_type=model_type,
      input_vocab_size=utils.inputs_vocabulary(vocabulary).vocab_size,
      output_vocab_size=utils.targets_vocabulary(vocabulary).vocab_size,
      layout_rules=layout_rules, mesh_shape=mesh_shape)
  _log_what_is_fast(fast_models.parts(model), optimizer and (
      adafactor.synthesizer_optimizer()))
  scores = kwargs.get("score_in_predict_mode", False)
  lengths, given = kwargs["sequence_length"], kwargs.get("predict_fn")
  kwargs["predict_fn"] = decode_length.predict_fn(
      model, given, scores, lengths.get("targets", 0))
  if jax_runtime.is_chosen():
    kwargs["autostack"] = False  # It gives variables on large meshes other names.
  model_fn = pipeline.around(utils.tpu_estimator_model_fn(
      model_type=model_type, transformer_model=model,
      vocabulary=scoring.keeping_ids(vocabulary) if scores else answers.decoding_rows(
          vocabulary),
      use_tpu=use_tpu, mesh_shape=mesh_shape, layout_rules=layout_rules,
      batch_size=batch_size, init_checkpoint=None,  # `start` takes its place.
      optimizer=optimizer and adafactor.fast(optimizer, mesh_shape, layout_rules),
      **kwargs), _steps(model, model_type, lengths, scores))
  model_fn, session_config = _on_devices(model_fn, use_tpu, kwargs.get("mesh_devices"))
  estimator = estimators.CarefulEstimator(
      model_fn=model_fn, config=_run_config(
          session_config, cluster, tpu_job_name, iterations_per_loop,
          kwargs["model_dir"], kwargs["save_checkpoints_steps"]),
      train_batch_size=batch_size, eval_batch_size=batch_size,
      predict_batch_size=batch_size, use_tpu=use_tpu, export_to_tpu=False, params={})
  estimator.optimizer = optimizer
  estimator.continues_inputs = model_type == "lm"
  estimator.keeps_batches = lambda: not scores and decode_length.depends_on_batch(
      model, given, lengths.get("inputs"))
  estimator.texts = padding.texts_in_command  # `MtfModel` has its own.
  estimator.start_from(start)
  estimator.vocabularies = record
  if chosen := validation.bound():
    estimator.validation = chosen.for_model(estimator, vocabulary, lengths, batch_size)
  return estimator


def _run_config(session_config, cluster, tpu_job_name, iterations_per_loop, model_dir,
                save_checkpoints_steps):
  return tpu_config.RunConfig(
      cluster=cluster, model_dir=model_dir, session_config=session_config,
      save_checkpoints_steps=save_checkpoints_steps, save_checkpoints_secs=None,
      tpu_config=tpu_config.TPUConfig(
          tpu_job_name=tpu_job_name, iterations_per_loop=iterations_per_loop,
          num_cores_per_replica=1,
          per_host_input_for_training=tpu_config.InputPipelineConfig.BROADCAST))


def _steps(model, model_type, lengths, scores):
  """What is done around Mesh TensorFlow's model function, from the outside in."""
  if scores:
    return [functools.partial(scoring.scored_ids, model_type=model_type)]
  return [answers.with_scores, functools.partial(
      decode_length.logged_limit, model=model, sequence_length=lengths)]


def _on_devices(model_fn, use_tpu, mesh_devices):
  """The model function for JAX, CPUs or others, and the session's configuration."""
  mixed_precision.warn_of_rounded_variables()
  mixed_precision.warn_of_lost_activations()
  if jax_runtime.is_chosen():
    return jax_runtime.through_jax(model_fn, use_tpu), None
  if use_tpu:
    return model_fn, _without_grappler()
  if any("gpu" in device.lower() for device in mesh_devices or []):
    return model_fn, None
  return mixed_precision.on_cpus(model_fn)


@functools.cache
def _log_line(line):
  """Logs a line once in a process, as evaluation makes an estimator for each step."""
  logging.info(line)


def _log_what_is_fast(parts, optimizer):
  parts = [*parts, *(["Adafactor"] if optimizer else [])]
  if parts:
    _log_line(f"Computed in faster code with the same results: {', '.join(parts)}; "
              "`synthesizer_fast.enabled = False` leaves all to Mesh TensorFlow.")


def _vocabularies(vocabulary, model_dir, start):
  """The record of the vocabularies, after comparing it with other records."""
  record = vocabulary_record.describe(vocabulary)
  vocabulary_record.check(model_dir, record)
  if start is not None and not complete.find(model_dir):
    vocabulary_record.warn_if_other(start.checkpoint, record)
  return record


def _without_grappler():
  """A configuration without grappler, which takes long and gains little on TPUs."""
  return tf.ConfigProto(graph_options=tf.GraphOptions(
      rewrite_options=rewriter_config_pb2.RewriterConfig(
          disable_meta_optimizer=True)))


def apply() -> None:
  """Makes Mesh and T5 use this `get_estimator`; a second call changes nothing."""
  patches.wrap("get_estimator", utils, _ours)
  iterators.apply()


def _ours(original):
  @functools.wraps(original)
  def wrapped(**kwargs):
    return get_estimator(**kwargs)

  return wrapped
