"""The models of Long Range Arena: sizes, rates, and a step at a tiny size."""

import math

import gin
import mesh_tensorflow as mtf
import numpy as np
import pytest
import seqio
from studies import lra
from support import models
import tensorflow.compat.v1 as tf

TINY = ["d_model = 8", "num_layers = 1", "d_ff = 12", "num_heads = 2", "d_kv = 4",
        "table_length = 7", "EncoderClassifier.hidden_sizes = [6]"]
# d_model, layers, d_ff, heads, batch, steps, rate
SIZES = {"listops": (512, 4, 1024, 8, 32, 5000, 0.05),
         "text": (256, 4, 1024, 4, 32, 20000, 0.05),
         "retrieval": (128, 4, 512, 4, 32, 5000, 0.05),
         "image": (128, 1, 128, 8, 256, 35000, 5e-4),
         "pathfinder32": (64, 2, 64, 4, 512, 62400, 1e-3)}


def value(name):
  return gin.query_parameter(name)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_steps_and_batches_equal_those_of_the_release(name):
  models.parse_gin([f"models/lra/{name}.gin", "attention/r.gin"])
  macros = ("d_model", "num_layers", "d_ff", "num_heads")
  found = [value(f"%{macro}") for macro in macros]
  found += [value(f"utils.run.{key}") for key in ("batch_size", "train_steps")]
  assert (*found, SIZES[name][-1]) == SIZES[name]
  task = seqio.TaskRegistry.get(value("%MIXTURE_NAME"))
  length = value("utils.run.sequence_length")["inputs"]
  assert length == value("%table_length") * (1 + ("retrieval" in task.name))


@pytest.mark.parametrize("name, warmup", [
    ("listops", 1000), ("text", 8000), ("image", 175), ("pathfinder32", 312)])
def test_rates_equal_those_of_the_release(name, warmup):
  models.parse_gin([f"models/lra/{name}.gin"])
  steps, rate = SIZES[name][-2:]
  schedule = value("utils.run.learning_rate_schedule").scoped_configurable_fn
  for step in (1, warmup // 2, warmup, steps // 2, steps - 1):
    expected = rate * min(1, step / warmup)
    if rate == 0.05:
      expected /= math.sqrt(max(step, warmup))
    else:
      expected *= 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / steps))
    with tf.Graph().as_default(), tf.Session() as session:
      found = session.run(schedule(tf.constant(step), total_train_steps=steps))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("name", SIZES)
def test_every_model_trains_with_its_optimizer(name):
  models.parse_gin([f"models/lra/{name}.gin", "attention/r+v.gin"], [
      *TINY, "DualEncoderClassifier.hidden_sizes = [6, 5]", "dropout_rate = 0.0"])
  m = models.Model(targets_vocabulary=4)
  length = 6 if name == "retrieval" else 7
  with m.tf_graph.as_default():
    inputs = np.random.RandomState(0).randint(1, models.VOCABULARY, (5, length))
    _, loss = m.model.call_simple(
        m.ids(inputs), m.ids([[1], [2], [3], [1], [2]]), True, mode="train")
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
    optimizer = value("utils.run.optimizer").scoped_configurable_fn(learning_rate=0.01)
    assert optimizer.beta_2 == 0.98
    losses, _ = m.run(loss, updates=optimizer.apply_grads(grads, variables), steps=8)
  losses = [loss for loss, in losses]
  assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_parameters_are_counted_by_task():
  found = {name: lra.parameters(
      ["models/lra/pathfinder32.gin", f"attention/{name}.gin"]) for name in "vr"}
  heads, d_model, d_kv, length, layers = 4, 64, 8, 1024, 2
  assert found["r"] - found["v"] == layers * (
      heads * length ** 2 - 2 * d_model * heads * d_kv)
