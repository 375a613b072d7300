"""Our loops that decode, beside what test_fast_equals_plain.py compares."""

import types
from unittest import mock

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from support.decoding import parse
from support.decoding import until_eos
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.fast.decoding import beams
from synthesizer_mtf.fast.decoding import decoder
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import top_tokens
import tensorflow.compat.v1 as tf

INPUTS = np.random.RandomState(0).randint(2, models.VOCABULARY, (6, 7))
INPUTS[1::2, 4:] = 0
LENGTH = 10  # Decoded in blocks of at most 3.


def search(fast, *bindings, vocabulary, scale):
  """The outputs, all beams and their scores, in two runs."""
  parse("R+V", f"synthesizer_decoding.fast = {fast}", "num_layers = 1", *bindings)
  m = models.Model(vocabulary=vocabulary)
  owner, name = ((decoder.Decoder, "_search") if fast
                 else (mtf.beam_search, "beam_search"))
  searched, original = [], getattr(owner, name)

  def keep(*args, **kwargs):
    searched.extend(original(*args, **kwargs))
    return searched[:2]

  with m.tf_graph.as_default(), mock.patch.object(
      loops, "FIRST_BLOCK", 3), mock.patch.object(owner, name, keep):
    outputs = m.model.decode(m.ids(INPUTS), max_decode_length=LENGTH, beam_size=3,
                             alpha=0.6, decode_length_constant=20)
    runs, _ = m.run(outputs, *searched, scale=scale, steps=2)
  for first, again in zip(*runs):
    np.testing.assert_array_equal(first, again)  # The caches start empty.
  return runs[0]


def check_same(*bindings, **arguments):
  ours, stock = (search(fast, *bindings, **arguments) for fast in (True, False))
  for a, b in zip(ours, stock):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
  return ours


@pytest.mark.slow
def test_beams_equal_mesh_tensorflows_if_some_end_early():
  outputs, *_ = check_same(
      "beam_search.eos_id = 107", "num_layers = 2", vocabulary=19, scale=1.5)
  assert (outputs[:, :-1] == 107).any()


@pytest.mark.slow
@pytest.mark.parametrize("length_of_pieces", [8, 128])  # The vocabulary has 384.
def test_the_first_token_wins_a_tie_and_all_hypotheses_end_early(length_of_pieces):
  with mock.patch.object(top_tokens, "_PIECE", length_of_pieces):
    outputs, _, scores = check_same(vocabulary=257, scale=1e-30)
  assert len(set(scores[:, 0])) == 1 and not (outputs > 2).any()
  assert max(map(len, until_eos(outputs))) < LENGTH


@pytest.mark.parametrize("stop_early", [True, False])
def test_the_search_stops_once_the_best_beam_is_certain_unless_gin_forbids_it(
    stop_early):
  options = beams.Options(
      alpha=0.6, eos_id=1, stop_early=stop_early, candidates=4, parts=1)
  with tf.Graph().as_default(), tf.Session() as session:
    none = tf.zeros([1, 2, 4], tf.int32)
    state = beams.Beams(  # What has ended is better than all that is going on.
        sequences=none, finished=none, log_probs=tf.constant([[-50.0, -60.0]]),
        scores=tf.constant([[-1.0, -2.0]]), flags=tf.constant([[True, True]]),
        parents=tf.constant([[0, 1]]), settled=tf.constant([False]))
    state = beams.grow(options, state, tf.zeros([1, 2, 5]), tf.constant(1),
                       tf.constant(4))
    assert session.run(state.settled).tolist() == [stop_early]


@pytest.mark.parametrize("answers", [1, 2])
def test_what_is_settled_is_the_same_however_long_others_go_on(answers):
  examples, vocabulary, length = 24, 7, 14
  random = np.random.RandomState(answers)
  options = beams.Options(alpha=0.6, eos_id=1, stop_early=True, candidates=4, parts=1,
                          answers=answers)
  # The examples differ in how likely they go on, and in what they look ahead.
  logits = random.randn(length, examples, 2, vocabulary).astype(np.float32)
  logits[..., 2] += np.linspace(0, 9, examples)[:, None]
  horizon = random.randint(1, length, examples)
  with tf.Graph().as_default(), tf.Session() as session:
    none = tf.zeros([examples, 2, length], tf.int32)
    state = beams.Beams(
        none, tf.constant([[0.0, -1e7]] * examples), none,
        tf.fill([examples, 2], -1e7), tf.fill([examples, 2], False),
        tf.zeros([examples, 2], tf.int32), tf.fill([examples], False))
    steps = []
    for position in range(length):
      state = beams.grow(
          options, state, tf.constant(logits[position]), tf.constant(position),
          tf.constant(length), tf.constant(horizon, tf.int32))
      steps.append((state.settled, beams.best(options, state, tf.constant(length))))
    states = session.run(steps)
  ends = {}
  for example in range(examples):
    kept = [tuple(x[example].tolist() for x in best) for settled, best in states
            if settled[example]]
    assert all(best == kept[0] for best in kept)
    ends[example] = length - len(kept) + 1
  late = sum(ends[i] > horizon[i] for i in ends)
  assert min(ends.values()) < max(ends.values()) and 0 < late < examples


def test_values_that_do_not_change_are_computed_before_the_loop():
  parse("R+V+D")
  m = models.Model()
  with m.tf_graph.as_default():
    m.model.decode(m.ids(INPUTS), max_decode_length=LENGTH)
  loop, = [op for op in m.graph.operations if isinstance(op, loops.WhileLoopOperation)]
  known = set(loop._body_inputs)
  for op in loop._body_ops:
    if not any(x in known for x in op.inputs):  # Small, or another shape alone.
      assert op.outputs[0].shape.size < 100 or isinstance(op, mtf.ReshapeOperation), op
    known.update(op.outputs)
  names = [op.name for op in m.graph.operations]
  assert all("softmax" not in op.name for op in loop._body_ops)
  assert any("softmax" in name for name in names)


def test_only_what_reads_nothing_of_a_loop_is_computed_before_it():
  graph = mtf.Graph()
  mesh = mtf.Mesh(graph, "mesh")
  parts = mtf.Dimension("parts", 3)
  made = {}

  def body(i, total):
    made["own"] = loops.once(lambda: mtf.ones(mesh, [parts]) * 2)
    made["again"] = loops.once(lambda: made["own"] * 3)
    made["changing"] = loops.once(lambda: total + made["own"])
    made["derived"] = loops.once(lambda: made["changing"] * 2)
    return [i + 1, made["changing"] + made["again"]]

  with tf.Graph().as_default(), tf.Session() as session:
    assert loops.once(lambda: "outside") == "outside"
    _, total = loops.while_loop(
        lambda i, _: mtf.less(i, 4), body,
        [mtf.zeros(mesh, [], tf.int32), mtf.zeros(mesh, [parts])])
    before = {key for key, x in made.items() if x.operation in graph.operations}
    lowering = mtf.Lowering(graph, {mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
        "", "", [""])})
    assert session.run(lowering.export_to_tf_tensor(total)).tolist() == [32] * 3
  assert before == {"own", "again"}


def test_products_of_a_step_are_of_the_type_that_begins_at_once():
  for equation, shapes, kind, *limit in (
      ("ab,bc->ac", ((2, 3), (3, 5)), "MatMul"),
      ("abc,cd->abd", ((2, 3, 5), (5, 7)), "MatMul"),
      ("ab,cb->ac", ((2, 3), (5, 3)), "Einsum"),
      # One row, or few rows, times each matrix, which may be transposed.
      ("abcd,abde->abce", ((2, 3, 1, 5), (2, 3, 5, 7)), "BatchMatMulV3", 0),
      ("abcd,abed->abce", ((2, 3, 1, 5), (2, 3, 7, 5)), "BatchMatMulV3", 0),
      ("abc,acd->abd", ((2, 3, 5), (2, 5, 7)), "BatchMatMulV3", 2 * 3 * 5 * 7),
      ("abc,acd->abd", ((2, 3, 5), (2, 5, 7)), "Einsum", 2 * 3 * 5 * 7 - 1),
      # The keys and the values of beams.
      ("abc,adec->abde", ((2, 3, 5), (2, 7, 11, 5)), "BatchMatMulV3"),
      ("abde,adec->abc", ((2, 3, 7, 11), (2, 7, 11, 5)), "BatchMatMulV3"),
      # Other orders of dimensions.
      ("abcd,aebd->abce", ((2, 3, 1, 5), (2, 7, 3, 5)), "Einsum"),
      ("abcd,abde->abec", ((2, 3, 1, 5), (2, 3, 5, 7)), "Einsum"),
      ("bac,acd->abd", ((3, 2, 5), (2, 5, 7)), "Einsum"),
      ("abde,aedc->abc", ((2, 3, 7, 11), (2, 11, 7, 5)), "Einsum")):
    operands = [np.random.RandomState(0).randn(*shape) for shape in shapes]
    with tf.Graph().as_default() as graph, tf.Session() as session, mock.patch.object(
        loops, "_FEW_MULTIPLICATIONS", *limit or [loops._FEW_MULTIPLICATIONS]):
      product = session.run(loops._einsum(equation, *map(tf.constant, operands)))
      kinds = {op.type for op in graph.get_operations()}
    np.testing.assert_allclose(product, np.einsum(equation, *operands), rtol=1e-12)
    assert kinds & {"BatchMatMulV3", "MatMul", "Einsum"} == {kind}


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
def test_only_decoding_steps_use_matmuls(rounded):
  parse("R+V")
  m = models.Model()
  with m.tf_graph.as_default(), mock.patch.object(
      loops, "_with_matrix", wraps=loops._with_matrix) as product:
    if rounded:
      mixed_precision.mark_graph()
    m.run(m.model.decode(m.ids(INPUTS), max_decode_length=LENGTH))
  loop, = [op for op in m.graph.operations if isinstance(op, loops.WhileLoopOperation)]
  of_steps = sum(isinstance(op, mtf.EinsumOperation) for op in loop._body_ops)
  assert 0 < product.call_count <= of_steps
  assert {x.dtype for call in product.call_args_list for x in call.args[1:]} == {
      tf.bfloat16 if rounded else tf.float32}


def test_blocks_grow_up_to_the_length():
  assert loops.block_ends(20) == [20]
  assert loops.block_ends(128) == [64, 128]
  assert loops.block_ends(513)[-2:] == [257, 513]


@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_best_tokens_equal_tensorflows_even_in_a_tie(k):
  values = np.random.RandomState(k).randint(0, 50, (7, 128 * 23)).astype(np.float32)
  with tf.Graph().as_default(), tf.Session() as session:
    ours, stock = session.run([
        top(tf.constant(values), k) for top in (top_tokens.top_k, tf.math.top_k)])
  for a, b in zip(ours, stock):
    np.testing.assert_array_equal(a, b)


def test_log_sum_exp_is_right_for_large_logits():
  x = np.array([[1e4, 0, -1e4], [-3e4, -3e4, -3e4]], np.float32)
  with tf.Graph().as_default(), tf.Session() as session:
    sums = session.run(top_tokens.log_sum_exp(
        tf.constant(x), tf.constant(x[:, :1]), tf.zeros([2, 1], tf.int32)))
  np.testing.assert_allclose(sums, [[1e4], [-3e4 + np.log(3)]], rtol=1e-6)


def casts_of_weights(inputs):
  """The casts of a kernel [d_model, d_ff] to bfloat16 in a graph that decodes."""
  parse("V", "num_layers = 1")
  m = models.Model()
  with m.tf_graph.as_default():
    mixed_precision.mark_graph()
    m.run(m.model.decode(m.ids(inputs), max_decode_length=LENGTH), scale=0.3)
  return [op for op in m.tf_graph.get_operations() if op.type == "Cast"
          and op.outputs[0].dtype == tf.bfloat16
          and op.outputs[0].shape.as_list() == [10, 14]]


def test_mixed_precision_rounds_weights_once_before_the_loop():
  casts = casts_of_weights(INPUTS)
  assert casts
  assert all(op._get_control_flow_context() is None for op in casts)


@pytest.mark.parametrize("limit, changes, kind", [
    (0, False, "Einsum"), (0, True, "BatchMatMulV3"),
    (2 ** 19, False, "BatchMatMulV3")])
def test_mixed_precision_rounds_the_keys_and_values_of_many_texts_once(
    limit, changes, kind):
  queries, keys = (np.random.RandomState(0).rand(*shape).astype(np.float32)
                   for shape in ((2, 3, 1, 5), (2, 3, 7, 5)))
  with tf.Graph().as_default() as graph, tf.Session() as session, mock.patch.object(
      loops, "_FEW_MULTIPLICATIONS", limit):
    factors = tf.constant(queries), tf.constant(keys)
    before = [] if changes else [types.SimpleNamespace(tensor_list=[factors[1]])]
    products = loops._RoundedProducts(types.SimpleNamespace(tensors=dict(
        enumerate(before))))
    both = [products.einsum("abcd,abed->abce", *factors) for _ in range(2)]
    made = [op for op in graph.get_operations()
            if op.type in ("Einsum", "BatchMatMulV3")]
    assert {(op.type, op.outputs[0].dtype == tf.bfloat16) for op in made} == {
        (kind, kind == "Einsum")}
    assert sum(factors[1] is x for op in graph.get_operations() for x in op.inputs
               ) == (2 if changes else 1)
    np.testing.assert_allclose(
        session.run(both), [np.einsum("abcd,abed->abce", queries, keys)] * 2,
        rtol=2 ** -6 if kind == "Einsum" else 1e-6)


def test_in_mixed_precision_a_single_text_is_multiplied_with_float32_weights():
  assert not casts_of_weights(INPUTS[:1])
