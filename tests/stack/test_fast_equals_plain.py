"""What fast/ computes equals the plain formulas and Mesh TensorFlow's own layers.

A case is a whole model: its attentions, what it does, and what only the fast model has,
such as a mesh. The plain model of `synthesizer_fast.enabled = False` has one processor.
What it decodes also agrees with a pass over all tokens at once. The suite has a few
cases, the same on every machine. For others, and for more of them:

  CASES=5000 SEED=1 python -m pytest -q tests/stack/test_fast_equals_plain.py

pytest shows how far it is, and `-n 2` runs two at a time. The number in a name and the
seed make the case again: CASES=1 SEED=1 FIRST=4711.
"""

import contextlib
import functools
import os
from unittest import mock

import mesh_tensorflow as mtf
from mesh_tensorflow import ops
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import cases as table
from support import decoding
from support import light_graphs
from support import model_cases
from support import models
from synthesizer_mtf.attention import attend
from synthesizer_mtf.fast import cases as fast_cases
from synthesizer_mtf.fast import kernels
from synthesizer_mtf.fast.decoding import decoder
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import top_tokens
import tensorflow.compat.v1 as tf

pytestmark = pytest.mark.slow
ONE, (BATCH, MODEL, D_MODEL, HEADS, BOTH, WHOLE) = model_cases.ONE, model_cases.MESHES
# Errors of bfloat16 would hide others; with dropout the plain model has the mesh, too.
T5 = {"kind": "bitransformer", "ensemble": None, "tpu": False, "softmax": True,
      "bfloat16": False, "dropout": 0.0, "positions": "example"}
TRAIN, TPU = {**T5, "task": "train"}, {**T5, "task": "train", "tpu": True}
LM = {**T5, "task": "greedy", "kind": "prefix"}
# For each kernel of attention, by the name of its class of inputs, what makes models
# use it. The other choices are drawn, each with as many others as possible.
ROWS = [
    ("Rows", {**TRAIN, "packed": False, "mesh": BATCH, "loss": model_cases.LOSSES[0]}),
    ("Rows", {**TRAIN, "packed": False, "mesh": MODEL, "chunk": 3,
              "decoder": ("FR+D+V",)}),
    ("Rows", {**TRAIN, "packed": False, "mesh": D_MODEL, "known": False, "kind": "lm",
              "decoder": ("R", "V")}),
    ("Rows", {**T5, "task": "eval", "packed": False, "mesh": ONE}),
    ("PackedSegments", {**TRAIN, "packed": True, "mesh": ONE, "again": "layers",
                        "bias": True, "decoder": ("R", "Pattern+V")}),
    ("PackedSegments", {**TRAIN, "packed": True, "mesh": MODEL, "again": ""}),
    ("PackedSegments", {**TRAIN, "packed": True, "mesh": HEADS, "known": False,
                        "kind": "delimited", "decoder": ("R+V",)}),
    ("PackedSegments", {**TRAIN, "packed": True, "mesh": ONE, "bfloat16": True,
                        "dropout": 0.25, "decoder": ("FR+T",)}),
    ("MaskedRows", {**TRAIN, "packed": True, "ensemble": 2, "mesh": ONE}),
    ("RowsCompiled", {**TRAIN, "tpu": "gpu", "packed": False, "mesh": MODEL,
                      "bias": True}),
    ("RowsOnTpu", {**TPU, "packed": False, "mesh": ONE, "dropout": 0.25}),
    ("PackedRowsOnTpu", {**TPU, "packed": True, "mesh": ONE, "encoder": "R",
                         "decoder": ("FR+D+V", "T"), "ensemble": 2}),
    ("PackedRowsOnTpu", {**TPU, "packed": True, "mesh": BATCH, "alone": True,
                         "encoder": "R", "decoder": ("R", "R+V", "Fix+FD+V")}),
    ("PackedRowsOnTpu", {**TPU, "packed": True, "mesh": WHOLE, "alone": False,
                         "encoder": "R", "bias": True, "decoder": ("FR+T",)}),
    ("PackedRowsOnTpu", {**TPU, "packed": True, "mesh": MODEL, "ensemble": 1}),
    ("RowsByIndex", {**TRAIN, "packed": True, "positions": "row", "mesh": MODEL,
                     "decoder": ("R+V", "Pattern+R+D")}),
    ("RowsByIndexCompiled", {**TRAIN, "packed": True, "positions": "row", "tpu": "gpu",
                             "mesh": ONE, "encoder": "FR+D+V"}),
    ("RowsByIndexOnTpu", {**TPU, "packed": True, "positions": "row", "mesh": BATCH,
                          "encoder": "R", "decoder": ("FR+T", "Fix+FD+V")}),
    ("StepOfMesh", {**T5, "task": "greedy", "tpu": True, "mesh": ONE}),
    ("DecodingStepInPlace", {**T5, "task": "greedy", "mesh": BOTH}),
    ("DecodingStepInPlace", {**LM, "kind": "lm", "mesh": WHOLE, "decoder": (
        "R+T", "Pattern", "V")}),
    ("DecodingStepOfBeams", {**T5, "task": "beams", "mesh": MODEL, "encoder": "V",
                             "decoder": ("Fix+FD+V",)}),
    ("FirstPartOfBeams", {**T5, "task": "beams", "mesh": ONE, "known": False,
                          "chunk": 3, "decoder": (
                              "V", "LightConv", "SparseFixed", "FR+D")}),
    ("Linformer", {**TRAIN, "kind": "classifier", "encoder": "Linformer",
                   "mesh": MODEL}),
    ("layers", {**TRAIN, "packed": True, "mesh": MODEL, "encoder": "LightConv",
                "decoder": ("SparseFixed",), "again": "layers"}),
    ("layers", {**LM, "mesh": ONE, "decoder": (
        "LightConv", "DyConv", "SparseFixed", "SparseStrided")}),
    ("layers", {**TPU, "packed": True, "mesh": BATCH, "encoder": "SparseStrided",
                "decoder": ("DyConv",), "bfloat16": True}),
    ("universal", {"kind": "universal", "task": "train", "packed": True, "mesh": ONE,
                   "tpu": False, "decoder": ("D+V",), "encoder": "Pattern",
                   "ensemble": None, "bfloat16": False, "dropout": 0.25,
                   "activation": "'relu'"}),
    ("act", {"kind": "act", "task": "greedy", "mesh": ONE, "tpu": False,
             "decoder": ("R+V",), "encoder": "R", "ensemble": None}),
]


def drawn():
  """The cases by name."""
  count = int(os.environ.get("CASES", "0"))
  if not count:
    return dict(zip([f"{n}-{name}" for n, (name, _) in enumerate(ROWS)],
                    model_cases.covering(0, [row for _, row in ROWS])))
  seed, first = (int(os.environ.get(name, "0")) for name in ("SEED", "FIRST"))
  return {str(n): model_cases.numbered(seed, n) for n in range(first, first + count)}


CASES = drawn()


def test_each_kernel_has_a_case_and_each_attention_is_drawn():
  assert {case.__name__ for case in attend._kernels} <= {name for name, _ in ROWS}
  assert {*table.VARIANTS} == {
      part for notation in model_cases.SYNTHESIZED for part in notation.split("+")}


@pytest.mark.parametrize("name", CASES)
def test_fast_equals_plain(name):
  case, used = CASES[name], set()
  with noting_kernels(used):
    fast = numbers(case, True)
  kernel = name.partition("-")[2]
  assert kernel in used or not hasattr(fast_cases, kernel), used
  plain = plain_numbers(case.plain)
  if case.again == "microbatches":
    plain = {name: value for name, value in plain.items() if name != "logits"}
  (check_decoded if case.decodes else check_same)(case, plain, fast)


@contextlib.contextmanager
def noting_kernels(names):
  """Adds the classes of inputs that kernels of fast/ compute."""
  def noting(kernel):
    def call(inputs, *args):
      names.add(type(inputs).__name__)
      return kernel(inputs, *args)
    return call

  with mock.patch.dict(attend._kernels, {
      case: noting(kernel) for case, kernel in attend._kernels.items()}):
    yield


def check_same(case, plain, fast):
  assert plain.keys() == fast.keys()
  for name, expected in plain.items():
    error = fast[name].reshape(expected.shape) - expected
    if name == "logits" and case.alone:  # Those of padding are any numbers.
      error *= case.segments[:, :error.shape[-2], None]
    size, of = (np.linalg.norm, 0.1) if case.bfloat16 else (largest, 5e-5)
    if case.bfloat16 and "relu" in case.activation and name not in ("loss", "logits"):
      of = 0.25  # By rounding, a hidden unit may have a gradient in one model only.
    assert size(error) <= of * max(1, size(expected)), (name, error, expected)


def largest(x):
  return np.abs(x).max(initial=0)


@functools.lru_cache(maxsize=2)
def plain_numbers(case):
  return numbers(case, False)


def numbers(case, fast):
  """The loss, logits and gradients, or what decoding finds, by name."""
  m = model(case, fast)
  with m.tf_graph.as_default(), light_graphs.light(
      share=not case.decodes), mock.patch.object(
          kernels, "_QUERY_CHUNK_SIZE", case.chunk), mock.patch.object(
              loops, "FIRST_BLOCK", 3), mock.patch.object(
                  top_tokens, "_PIECE", 4), mock.patch.object(
                      ops, "random_uniform", _in_float32):
    tf.set_random_seed(0)
    named = _decoding(m, case, fast) if case.decodes else _training(m, case)
    values = light_graphs.values(m, *named.values(), seed=case.seed,
                                 scale=1.0 if case.decodes else 0.3)
  return dict(zip(named, values))


def _in_float32(mesh, shape, dtype):
  """The numbers of dropout: Mesh's feed-forward layers draw bfloat16, ours do not."""
  del dtype
  return mtf.random_uniform(mesh, shape, dtype=tf.float32)


FULL = "Unitransformer.input_full_attention = True"
# The gin files, further lines and options of each kind of models.
KINDS = {
    "bitransformer": ([], [], {}),
    "lm": ([], [], {"model_type": "lm"}),
    "prefix": ([], [FULL], {"model_type": "lm"}),
    "delimited": ([], [FULL, "Unitransformer.loss_on_targets_only = True"],
                  {"model_type": "delimited_lm"}),
    "shared": (["models/bi_v1_shared.gin"], ["num_layers = 1"], {}),
    "classifier": (["classifier.gin"], [], {"targets_vocabulary": 4}),
    "universal": (["stacks/universal.gin"], ["num_layers = 2"], {}),
    "act": (["stacks/universal.gin"],
            ["num_layers = 2", "UTLayerStack.recurrence_type = 'act'"], {}),
}


def lines(case, fast):
  """The gin of a model, besides its attentions and that of its kind."""
  yield from (
      f"synthesizer_fast.enabled = {fast}", "d_ff = 12",
      f"dropout_rate = {case.dropout}", f"SyntheticAttention.softmax = {case.softmax}",
      f"SyntheticAttention.positions = {case.positions!r}",
      "Linformer.max_length = 9", "Linformer.rank = 3",
      f"DenseReluDense.activation = {case.activation}",
      f"Unitransformer.shared_embedding_and_softmax_weights = {case.tied}",
      f"Bitransformer.shared_embedding = {case.tied}", *case.loss, *case.search[0])
  if case.bias:
    for name in "SyntheticAttention", "SparseFixed", "SparseStrided":
      yield f"{name}.relative_attention_type = 'bias_shared'"
  if case.ensemble and (fast or case.ensemble > 1):
    yield f"Unitransformer.ensemble = {case.ensemble}"
  if case.again == "layers":
    yield "LayerStack.recompute_grads = True"
  if case.dropout and has_stock(case) and "vocab" in case.mesh[1]:
    yield "synthesizer_vocabulary.fast = False"  # The models do not know the mesh.


def has_stock(case):
  """Whether an attention is Mesh's own."""
  return model_cases.STOCK in [case.encoder] * case.has_encoder + [*case.decoder]


def model(case, fast):
  """The fast or the plain model of a case."""
  files, more, options = KINDS[case.kind]
  attentions = list(case.decoder)
  decoding.parse(([case.encoder], attentions) if case.has_encoder else attentions,
                 *lines(case, fast), *more, files=files)
  shape, layout = case.mesh
  m = models.Model(**options, mesh_shape=shape, layout=layout, tpu=case.tpu)
  # Mesh's search drops tokens only if it knows the mesh. Its attention splits the batch
  # over one that it knows, and then dropout draws other numbers.
  if not case.known or case.dropout and (has_stock(case) or not fast):
    for part in [m.model.encoder, m.model.decoder] if case.has_encoder else [m.model]:
      part.layout = part.mesh_shape = None
  return m


def _training(m, case):
  generator = np.random.RandomState(case.seed)
  segments = case.segments
  tokens = generator.randint(2, models.VOCABULARY, segments.shape) * (segments > 0)
  targets = generator.randint(2, models.VOCABULARY, segments.shape)
  targets[:, 3] = decoding.EOS  # The end of a prefix.
  targets *= segments > 0
  features = {"inputs": tokens, "targets": targets[:, :7]}
  if case.kind == "classifier":
    features["targets"] = np.array([[1], [3], [2], [0]])
  if case.packed:
    features.update(encoder_sequence_id=segments, decoder_sequence_id=segments[:, :7])
  features = {name: m.ids(array) for name, array in features.items()}
  dtype = mtf.VariableDType(
      tf.float32, tf.float32, tf.bfloat16 if case.bfloat16 else tf.float32)

  def call(features, num_microbatches=1):
    targets = features["targets"]
    if case.has_encoder:
      inputs = features["inputs"]
      marks = {name: features[name] for name in features if "sequence_id" in name}
    else:
      inputs = transformer.autoregressive_inputs(targets)
      marks = {"sequence_id": features["decoder_sequence_id"] if case.packed
               else mtf.minimum(targets, 1)}
    return m.model.call_simple(
        inputs, targets, True, mode=case.task, variable_dtype=dtype,
        num_microbatches=num_microbatches, **marks)

  if case.again == "microbatches":
    grads, results = mtf.serialize_training_step(
        features, lambda some: {"loss": call(some, 2)[1]},
        features["inputs"].shape.dims[0], 2)
    named = {"loss": results["loss"]}
  else:
    logits, loss = call(features)
    named = {"loss": loss, "logits": logits}
    grads = mtf.gradients(
        [loss], [v.outputs[0] for v in m.graph.trainable_variables]
    ) if case.trains else []
  if case.ensemble == 1:  # It has log-probabilities in their place.
    named.pop("logits", None)
  named.update((v.name, grad) for v, grad in zip(m.graph.trainable_variables, grads))
  return {name: mtf.cast(t, tf.float32) for name, t in named.items()}


def tokens_to_decode(case):
  """The inputs, or what a language model continues."""
  tokens = np.random.RandomState(case.seed).randint(2, models.VOCABULARY, (4, 7))
  lengths = np.array([[7], [4], [1], [3]])
  tokens[np.arange(7) == lengths - 1] = decoding.EOS  # The end of a prefix.
  return tokens * (np.arange(7) < lengths)


def _decoding(m, case, fast):
  """The decoded ids and, in beam search, all beams and their scores.

  The plain model also has the logits of a pass over all tokens.
  """
  tokens, beams = tokens_to_decode(case), []
  # Mesh TensorFlow's own search would not be known to gin if it were replaced.
  owner, name = ((decoder.Decoder, "_search") if fast else
                 (mtf.beam_search, "beam_search"))
  search = getattr(owner, name)

  def keep(*args, **kwargs):
    beams[:] = search(*args, **kwargs)[:2]
    return beams

  with mock.patch.object(owner, name, keep):
    if case.has_encoder:
      inputs = m.ids(tokens)
      outputs = m.model.decode(inputs, **(
          {} if case.kind == "classifier" else {"max_decode_length": 8}),
                               **dict(case.search[1]))
    else:
      start = m.ids(np.pad(tokens, [(0, 0), (0, 3)]))
      outputs = m.model.sample_autoregressive(start, temperature=0.0)
  named = {"ids": outputs, **dict(zip(["beams", "scores"], beams))}
  if not fast and not case.ensemble:
    with tf.variable_scope("", reuse=True):
      if case.has_encoder:
        marks = {}
      else:
        outputs = first_example(outputs)
        inputs = transformer.autoregressive_inputs(outputs)
        marks = {"sequence_id": mtf.minimum(outputs, 1)}
      named["logits"], _ = m.model.call_simple(
          inputs, outputs, False, mode="eval", **marks)
  return named


def first_example(ids):
  """The ids up to the second end: that of the prefix, then that of what was decoded.

  Rows go on until all have ended. A delimited language model takes what follows for
  the prefix of another example, which all positions of its segment see.
  """
  ends = mtf.to_int32(mtf.equal(ids, decoding.EOS))
  return ids * mtf.to_int32(
      mtf.less(mtf.cumsum(ends, ids.shape.dims[-1], exclusive=True), 2))


def check_decoded(case, plain, fast):
  """Checks that both models find the same ids, which a pass over all tokens confirms.

  Where two tokens or two beams are equally good up to rounding, either is right.
  """
  if "logits" not in plain:
    np.testing.assert_array_equal(fast["ids"], plain["ids"])
  elif case.task == "greedy":
    for row in zip(tokens_to_decode(case) > 0, plain["ids"], fast["ids"],
                   plain["logits"]):
      check_greedy(case, *row)
  else:
    check_beams(case, plain, fast)


def check_greedy(case, given, plain, fast, logits):
  for i, (expected, token) in enumerate(zip(plain, fast)):
    if not case.has_encoder and i < len(given) and given[i]:
      assert token == expected
      continue
    if not expected or not token:  # Nothing was decoded.
      assert token == expected
      return
    assert min(logits[i][expected], logits[i][token]) > logits[i].max() - 1e-3, i
    if expected != token or expected == decoding.EOS:
      return


def check_beams(case, plain, fast):
  best, second = plain["scores"][:, 0], plain["scores"][:, 1]
  if "scores" in fast:
    np.testing.assert_allclose(
        fast["scores"], plain["scores"], rtol=1e-5, atol=1e-4)
  is_clear = best - second > 1e-4
  np.testing.assert_array_equal(fast["ids"][is_clear], plain["ids"][is_clear])
  eos = 107 if "beam_search.eos_id = 107" in case.search[0] else decoding.EOS
  logits = plain["logits"] - plain["logits"].max(-1, keepdims=True)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  for row, score, log_p_of_row in zip(plain["ids"], best, log_p):
    length = list(row).index(eos) + 1 if eos in row else 0
    # A pass takes a decoded 0 for padding. A beam that did not exist at first, as each
    # beam has few candidates on a mesh, has the score of Mesh TensorFlow's infinity.
    if length and 0 not in row[:length] and score > -mtf.beam_search.INF / 10:
      total = sum(log_p_of_row[i][row[i]] for i in range(length))
      penalty = ((5 + length) / 6) ** dict(case.search[1])["alpha"]
      np.testing.assert_allclose(score, total / penalty, atol=1e-3)
