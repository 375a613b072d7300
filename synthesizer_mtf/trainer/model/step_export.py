"""Writes a training step and its state as files that JAX runs without TensorFlow.

`export_step.gin` asks for it. docs/read_step.py reads the files.
"""

import json
import os
from typing import Any

from absl import logging
import gin
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import mesh
from synthesizer_mtf.runtime import program
from synthesizer_mtf.trainer.model import jax_runtime
import tensorflow.compat.v1 as tf


@gin.configurable("synthesizer_export_step", module="synthesizer_mtf")
def export_step(estimator: Any, vocabulary: Any, sequence_length: Any, batch_size: int,
                train_dataset_fn: Any, train_steps: int, ensemble_inputs: int | None,
                dataset_split: str = "train", folder: str = gin.REQUIRED,
                **others: Any) -> None:
  """Writes step.jax, state.npz and step.json; trains and saves nothing.

  It takes the place of `train_model` as `utils.run.train_model_fn`. The state is that
  of the newest checkpoint, or initial values if there is none.

  Args:
    estimator: a `CarefulEstimator`.
    vocabulary: as Mesh TensorFlow's `train_model` takes it.
    sequence_length: likewise.
    batch_size: likewise.
    train_dataset_fn: likewise.
    train_steps: ignored.
    ensemble_inputs: as Mesh TensorFlow's `train_model` takes it.
    dataset_split: likewise.
    folder: where to write the files.
    **others: ignored.

  Raises:
    ValueError: JAX does not run the model.
  """
  del train_steps, others
  checks.require(jax_runtime.is_chosen(), "synthesizer_mtf.runtime", "tensorflow",
                 'be "jax" to export a step: add --gin_file=jax.gin')
  os.makedirs(folder, exist_ok=True)
  with tf.Graph().as_default():
    tf.set_random_seed(estimator.config.tf_random_seed)
    tf.train.create_global_step()
    data = train_dataset_fn(sequence_length=sequence_length, vocabulary=vocabulary,
                            dataset_split=dataset_split)
    data = data.repeat().batch(
        batch_size * (ensemble_inputs or 1), drop_remainder=True)
    features = tf.data.make_one_shot_iterator(data).get_next()
    spec = estimator._call_model_fn(
        features, None, tf.estimator.ModeKeys.TRAIN, estimator.config)
    _write(folder, spec.scaffold.mesh_impl, _state(
        spec.scaffold, estimator.latest_checkpoint()))
  logging.info("The step and its state are in %s.", folder)


def _state(scaffold, checkpoint):
  """The variables of the model, and the step's number, as NumPy arrays by name."""
  with tf.Session() as session:
    if checkpoint:
      saver, = tf.get_collection(tf.GraphKeys.SAVERS)
      saver.restore(session, checkpoint)
    else:
      session.run(scaffold.init_op)
      scaffold.init_fn(session)
    step = session.run(tf.train.get_global_step())
  return {"global_step": step, **{
      name: v.read() for name, v in scaffold.on_devices.items()}}


def _write(folder: str, mesh_impl: mesh.JaxMeshImpl, state: dict[str, Any]) -> None:
  with open(os.path.join(folder, "step.jax"), "wb") as f:
    f.write(mesh_impl.compiled.module)
  np.savez(os.path.join(folder, "state.npz"), **state)
  described = {
      "inputs": [[t.op.name.removesuffix("/jax_input"), t.shape.as_list(),
                  np.dtype(program.jax_type(t)).name] for t in mesh_impl.input_tensors],
      "state": [*mesh_impl.compiled.state], "changed": mesh_impl.compiled.changed}
  with open(os.path.join(folder, "step.json"), "w", encoding="utf-8") as f:
    json.dump(described, f, indent=1)
