"""Classifiers of one text and of two against NumPy, and the models of Table 7."""

import pathlib

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import models
from support.classifiers import IDS
from support.classifiers import INPUTS
from support.classifiers import make
from support.classifiers import step
from support.classifiers import TARGETS
from support.decoding import recorded
from support.meshes import tpu_mesh
from synthesizer_mtf import gin_files
from synthesizer_mtf.t5 import answer_recorder
import tensorflow.compat.v1 as tf

TABLE7 = ["transformer", "linformer", "fr", "fr+v"]


# An encoder with only T5's embedding and its last norm.
NO_BLOCKS = ["encoder/synthesizer_stack.attention = None", "num_layers = 0"]
DUAL = "make_bitransformer.bitransformer_cls = @DualEncoderClassifier"
SIX = INPUTS[:, :6]


def numpy_pooled(variables, pooling="mean", ids=INPUTS):
  """The pooled tokens, [batch, d_model], of an encoder without blocks."""
  x = variables["shared/embedding"][ids]
  x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
  x = x * variables["encoder/rms_norm/scale"] * (ids > 0)[..., None]
  count = np.maximum((ids > 0).sum(-1, keepdims=True), 1)
  return x[:, 0] if pooling == "first" else x.sum(1) / count


def numpy_head(x, variables):
  """The logits [batch, classes] from what the head reads."""
  for number in range(2):
    kernel = variables[f"classifier_hidden_{number}/kernel"]
    x = np.maximum(x @ kernel.reshape(-1, kernel.shape[-1]), 0)
  return x @ variables["classifier/kernel"][:, 1:IDS]


def numpy_scores(variables, pooling):
  """The log-probabilities [batch, classes] of an encoder without blocks."""
  pooled = numpy_pooled(variables, pooling)
  scores = pooled @ variables["classifier/kernel"][:, 1:IDS]
  return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


@pytest.mark.parametrize("pooling, smoothing, mode", [
    ("mean", 0.0, "train"), ("mean", 0.3, "eval"), ("first", 0.0, "eval")])
def test_loss_and_class_equal_pooling_and_softmax(
    pooling, smoothing, mode):
  m = make(*NO_BLOCKS, f"EncoderClassifier.pooling = '{pooling}'",
           "decoder/Unitransformer.z_loss = 0.02",
           f"decoder/Unitransformer.label_smoothing = {smoothing}")
  with m.tf_graph.as_default():
    logits, loss, _ = step(m, mode=mode)
    ((scores, value, best),), p = m.run(
        logits, loss, m.model.decode(m.ids(INPUTS)), scale=1.0)
  expected = numpy_scores(p, pooling)
  assert scores.shape == (4, 1, 128) and scores.dtype == np.float32
  chosen = np.eye(3)[[0, 2, 1]] * (1 - smoothing) + smoothing / 3
  losses = -(chosen * expected[:3]).sum(-1)
  if mode == "train":
    log_z = np.log(np.exp(scores[:3, 0].astype(float)).sum(-1))
    losses += 0.02 * log_z ** 2
  np.testing.assert_allclose(value, losses.sum() / 4, rtol=1e-4)
  probability = np.exp(scores[:, 0]) / np.exp(scores[:, 0]).sum(-1)[:, None]
  np.testing.assert_allclose(
      probability[:, 1:IDS], np.exp(expected), atol=1e-5)
  assert (probability[:, [0, *range(IDS, 128)]] == 0).all()
  assert (best == expected.argmax(-1)[:, None] + 1)[:3].all()


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_answers_are_the_likeliest_classes_with_numpys_log_likelihoods(classes):
  m = make(*NO_BLOCKS)
  with m.tf_graph.as_default():
    inputs = m.ids(INPUTS)
    answers = recorded(lambda: m.model.decode(inputs), classes)
    ((ids, scores, lengths, best),), p = m.run(
        *answers, m.model.decode(inputs), scale=1.0)
  expected = numpy_scores(p, "mean")
  assert ids.shape == (4, classes, 1) and (lengths == 1).all()
  np.testing.assert_array_equal(ids[:, 0], best)
  order = np.argsort(-expected, kind="stable")[:, :classes]
  np.testing.assert_array_equal(ids[..., 0], order + 1)
  np.testing.assert_allclose(
      scores, np.take_along_axis(expected, order, 1), atol=1e-5)


def test_more_answers_than_classes_are_an_error():
  m = make(*NO_BLOCKS)
  with m.tf_graph.as_default(), answer_recorder.recording(4), pytest.raises(
      ValueError, match="number` is 4, but the targets have 3 classes"):
    m.model.decode(m.ids(INPUTS))


def test_hidden_layers_stand_between_the_mean_and_the_softmax():
  m = make(*NO_BLOCKS, "EncoderClassifier.hidden_sizes = [11, 5]")
  with m.tf_graph.as_default():
    logits, loss, _ = step(m, mode="eval")
    ((scores, value),), p = m.run(logits, loss, scale=1.0)
  assert [p[f"classifier_hidden_{n}/kernel"].shape[1] for n in (0, 1)] == [11, 5]
  expected = numpy_head(numpy_pooled(p), p)
  np.testing.assert_allclose(scores[:, 0, 1:IDS], expected, atol=1e-5)
  losses = np.log(np.exp(expected).sum(-1))[:3] - expected[range(3), [0, 2, 1]]
  np.testing.assert_allclose(value, losses.sum() / 4, rtol=1e-4)


@pytest.mark.parametrize("interaction", [True, False])
def test_the_head_reads_both_texts_their_product_and_difference(interaction):
  m = make(*NO_BLOCKS, DUAL, "DualEncoderClassifier.hidden_sizes = [11, 5]",
           f"DualEncoderClassifier.interaction = {interaction}")
  with m.tf_graph.as_default():
    logits, loss, _ = step(m, inputs=SIX, mode="eval")
    ((scores, _),), p = m.run(logits, loss, scale=1.0)
  one, two = (numpy_pooled(p, ids=ids) for ids in (SIX[:, :3], SIX[:, 3:]))
  x = np.concatenate([one, two, one * two, one - two][:4 if interaction else 2], 1)
  np.testing.assert_allclose(scores[:, 0, 1:IDS], numpy_head(x, p), atol=1e-5)


def test_both_texts_share_the_encoder_are_read_apart_and_decide_the_class():
  m = make("num_layers = 1", DUAL, "DualEncoderClassifier.interaction = False")
  alone = make("num_layers = 1")
  with alone.tf_graph.as_default():
    alone.model.call_simple(alone.ids(SIX[:, :3]), alone.ids([[1]] * 4), True)
  with m.tf_graph.as_default():
    logits, _ = m.model.call_simple(m.ids(SIX), m.ids([[1]] * 4), False, mode="eval")
    assert {v.name for v in m.graph.all_variables} == {
        v.name for v in alone.graph.all_variables}
    swapped = np.concatenate([SIX[:, 3:], SIX[:, :3]], 1)
    pooled = [m.model._pooled(
        m.ids(ids), False, "eval", mtf.VariableDType(tf.float32), 1)[0]
              for ids in (SIX, swapped)]
    (values,), _ = m.run(*pooled, logits, m.model.decode(m.ids(SIX)), scale=0.7)
  np.testing.assert_allclose(values[0][:, ::-1], values[1], atol=1e-5)
  assert np.abs(values[0][:, 0] - values[0][:, 1]).max() > 1e-3
  np.testing.assert_array_equal(values[3], values[2].argmax(-1))


@pytest.mark.parametrize("name", TABLE7)
def test_models_of_table_7_train_and_more_padding_changes_nothing(name):
  files = [f"models/table7/{n}.gin" for n in (name, "laptop")]
  models.parse_gin(files, ["num_layers = 1", "d_model = 10", "d_ff = 12"])
  m = models.Model(targets_vocabulary=IDS)
  with m.tf_graph.as_default():
    logits, loss, grads = step(m, mode="eval")
    longer, _ = m.model.call_simple(
        m.ids(np.pad(INPUTS, [(0, 0), (0, 4)])), m.ids(TARGETS), False,
        mode="eval")
    variables = m.graph.trainable_variables
    tf.train.get_or_create_global_step()
    updates = optimize.AdafactorOptimizer(learning_rate=0.05).apply_grads(
        list(grads.values()), variables)
    steps, _ = m.run(loss, logits, longer, updates=updates, steps=6)
  for _, short, padded in steps:
    np.testing.assert_allclose(short, padded, atol=1e-4)
  losses = [loss for loss, _, _ in steps]
  assert np.isfinite(losses).all() and losses[-1] < losses[0]
  last = {"transformer": "/q", "linformer": "/E", "fr": "/R1", "fr+v": "/alpha"}[name]
  shape, = [v.shape.to_integer_list for v in variables
            if v.name.startswith("encoder/block_000/layer_000/")
            and v.name.endswith(last)]
  if name in ("fr", "linformer"):  # the paper's rank
    assert shape[1:] == [512, 32]


def test_the_encoder_has_the_variable_names_of_an_encoder_decoder():
  names = []
  for cls in ("EncoderClassifier", "Bitransformer"):
    m = make(f"make_bitransformer.bitransformer_cls = @{cls}")
    with m.tf_graph.as_default():
      m.model.call_simple(m.ids(INPUTS), m.ids(TARGETS), True)
    names.append({v.name: v.shape for v in m.graph.all_variables})
  ours, theirs = names
  kernel = ours.pop("classifier/kernel")
  assert [d.name for d in kernel.dims] == ["d_model", "vocab"]
  assert ours == {name: shape for name, shape in theirs.items()
                  if name.startswith(("shared/", "encoder/"))}


@pytest.mark.slow
def test_a_training_step_lowers_to_eight_cores_and_the_head_splits():
  m = make("num_layers = 1", mesh_shape="batch:2,model:4")
  with m.tf_graph.as_default():
    step(m)
    mesh_impl = tpu_mesh("batch:2,model:4")
    mtf.Lowering(m.graph, {m.mesh: mesh_impl}, autostack=False)
  kernel, = [v for v in m.graph.all_variables if v.name == "classifier/kernel"]
  assert mesh_impl.slice_shape(kernel.shape) == [10, 32]


def test_logits_and_loss_are_float32_with_bfloat16_activations():
  m = make("num_layers = 1")
  with m.tf_graph.as_default():
    logits, loss, _ = step(m, variable_dtype=mtf.VariableDType(
        activation_dtype=tf.bfloat16))
  assert logits.dtype == loss.dtype == tf.float32


@pytest.mark.parametrize("binding, message", [
    ("EncoderClassifier.pooling = 'max'",
     "`EncoderClassifier.pooling` is 'max' but must be one of 'mean', 'first'"),
    ("EncoderClassifier.hidden_sizes = 5",
     "`EncoderClassifier.hidden_sizes` is 5 but must be a list of positive integers"),
    ("Unitransformer.ensemble = 2", "`Unitransformer.ensemble` is 2"),
    (f"{DUAL}\nDualEncoderClassifier.interaction = 'NLI'",
     "`DualEncoderClassifier.interaction` is 'NLI' but must be True or False"),
    (f"{DUAL}\nDualEncoderClassifier.pooling = 'max'",
     "`DualEncoderClassifier.pooling` is 'max' but must be one of"),
])
def test_a_bad_parameter_is_named(binding, message):
  with pytest.raises(ValueError, match=message):
    make(binding)


def test_rows_that_it_cannot_read_are_refused():
  m = make(DUAL)
  with m.tf_graph.as_default(), pytest.raises(
      ValueError, match="gives the inputs 7 ids, but DualEncoderClassifier reads two"):
    step(m)
  m = make()
  with m.tf_graph.as_default():
    with pytest.raises(ValueError, match="bind `mesh_train_dataset_fn.pack = False`"):
      step(m, encoder_sequence_id=m.ids(INPUTS), encoder_position=m.ids(INPUTS),
           decoder_sequence_id=m.ids(TARGETS), decoder_position=m.ids(TARGETS))
    with pytest.raises(ValueError, match="gives the targets 7 ids.*write `utils.run."
                       "sequence_length = {'inputs': 7, 'targets': 1}`"):
      step(m, targets=INPUTS)


def test_each_model_file_begins_with_its_command_and_has_the_papers_heads():
  for name in TABLE7:
    path = pathlib.Path(gin_files.folder()) / "models" / "table7" / f"{name}.gin"
    head, _ = path.read_text().split("include", 1)
    assert "# synthesizer_mesh_transformer" in head
    assert f"--gin_file=models/table7/{name}.gin" in head
    models.parse_gin([f"models/table7/{name}.gin"])
    assert gin.query_parameter("num_heads/macro.value") == 8  # as in the paper
