"""One attention learns its job: V finds a value by its key, and R only guesses."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import harness
from support import sessions
import synthesizer_mtf
import tensorflow.compat.v1 as tf

# A row holds pairs, a key and a value in each token, and then keys alone. Their values
# are asked for (multi-query associative recall, arXiv:2312.04927, on one layer).
BATCH, PAIRS, QUESTIONS, SYMBOLS = 64, 4, 3, 6
LENGTH, STEPS = PAIRS + QUESTIONS, 250
KEY, VALUE = np.eye(2 * SYMBOLS).reshape(2, SYMBOLS, 2 * SYMBOLS)


def draw(generator):
  """Tokens [batch, length, d_model] and the values asked for [batch, questions]."""
  keys, values = np.argsort(
      generator.rand(2, BATCH, SYMBOLS), axis=-1)[..., :PAIRS]
  asked = generator.randint(PAIRS, size=(BATCH, QUESTIONS))
  questions = np.take_along_axis(keys, asked, axis=1)
  x = np.concatenate([KEY[keys] + VALUE[values], KEY[questions]], axis=1)
  return x, np.take_along_axis(values, asked, axis=1)


def trained_accuracy(notation):
  """The share of right answers, on new rows, after a training."""
  layer = synthesizer_mtf.attention_layer(
      notation, num_heads=1, key_value_size=8, dropout_rate=0.0, max_length=LENGTH)
  graph = harness.LayerGraph(
      layer, True, BATCH, LENGTH, scale=None, d_model=2 * SYMBOLS)
  symbols = mtf.Dimension("d_model", SYMBOLS)
  with graph.tf_graph.as_default():
    fed = tf.placeholder(tf.float32, [BATCH, LENGTH, 2 * SYMBOLS])
    answers = tf.placeholder(tf.int32, [BATCH, LENGTH])
    tf.train.get_or_create_global_step()
    x, targets = (
        mtf.import_tf_tensor(graph.mesh, tensor, mtf.Shape(dims))
        for tensor, dims in ((fed, [graph.batch_dim, graph.length_dim, graph.d_model]),
                             (answers, [graph.batch_dim, graph.length_dim])))
    y = graph.call(graph.context("train"), x)
    logits = mtf.slice(y, SYMBOLS, SYMBOLS, "d_model")
    # One-hot rows of pairs, whose answers are -1, are 0.
    loss = mtf.reduce_sum(mtf.layers.softmax_cross_entropy_with_logits(
        logits, mtf.one_hot(targets, symbols), symbols))
    variables = graph.graph.trainable_variables
    updates = optimize.AdafactorOptimizer(learning_rate=0.03).apply_grads(
        mtf.gradients([loss], [v.outputs[0] for v in variables]), variables)
    lowering = mtf.Lowering(graph.graph, {
        graph.mesh: mtf.placement_mesh_impl.PlacementMeshImpl("", "", [""])})
    step = [lowering.lowered_operation(op) for op in updates]
    exported = lowering.export_to_tf_tensor(logits)
    generator = np.random.RandomState(0)
    with sessions.start() as session:
      session.run(tf.global_variables_initializer())
      session.run(lowering.copy_masters_to_slices())
      for number in range(STEPS + 1):
        tokens, right = draw(generator)
        feed = {fed: tokens, answers: np.pad(
            right, [(0, 0), (PAIRS, 0)], constant_values=-1)}
        if number < STEPS:
          session.run(step, feed)
      best = session.run(exported, feed)[:, PAIRS:].argmax(-1)
  return (best == right).mean()


@pytest.mark.parametrize("notation, low, high", [
    ("V", 0.9, 1), ("R+V", 0.9, 1), ("R", 0.1, 0.4)])
def test_v_answers_from_memory_and_r_guesses_one_of_the_values(notation, low, high):
  assert low < trained_accuracy(notation) <= high
