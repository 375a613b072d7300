"""Embeddings and losses without one-hot rows equal Mesh TensorFlow's."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import meshes
from support import models
from synthesizer_mtf.fast import cross_entropy
from synthesizer_mtf.fast import lookup
import tensorflow.compat.v1 as tf

FAST = (lookup.LookupOperation, cross_entropy.CrossEntropyOperation)
# Ids with padding; 200 is outside of the vocabulary, 32 rounded up to 128.
INPUTS = [[5, 9, 3, 7, 11, 2, 1], [8, 4, 1, 0, 0, 0, 0], [8, 9, 4, 5, 30, 1, 0],
          [7, 7, 31, 7, 2, 200, 1]]
TARGETS = [[4, 9, 6, 1, 0], [3, 1, 0, 0, 0], [31, 30, 2, 3, 1], [7, 9, 9, 9, 1]]
# Rows of inputs and targets; the inputs have no loss.
JOINED = [[5, 9, 1, 4, 6, 3, 1, 0], [8, 1, 7, 7, 7, 7, 1, 0],
          [4, 4, 4, 4, 1, 3, 1, 0], [9, 1, 3, 1, 0, 0, 0, 0]]


def parse(fast, *bindings, files=("models/bi_v1.gin",)):
  models.parse_gin(list(files), models.TINY + [
      "synthesizer_stack.attention = 'R'",
      "num_layers = 1", f"synthesizer_vocabulary.fast = {fast}", *bindings])


def fast_operations(m):
  return {type(op) for op in m.graph.operations} & set(FAST)


def train(fast, *bindings, model_type="bitransformer", mode="train",
          activation="float32", mesh=("", ""), vocabulary_size=32, **kwargs):
  """The loss, the gradients by variable, and whether the operations are ours."""
  parse(fast, *bindings, **kwargs)
  m = models.Model(model_type, vocabulary_size, *mesh)
  ids = m.ids(INPUTS), m.ids(TARGETS)
  if model_type != "bitransformer":
    with m.tf_graph.as_default():
      ids = transformer.autoregressive_inputs(m.ids(JOINED)), m.ids(JOINED)
  values = m.loss_and_gradients(*ids, mode, scale=0.5, variable_dtype=mtf.VariableDType(
      tf.float32, tf.float32, tf.as_dtype(activation)))
  assert fast_operations(m) == (set(FAST) if fast else set())
  return values


def check(one, other, rtol=1e-5):
  assert one.keys() == other.keys() and len(one) > 5
  for name, value in one.items():
    scale = np.abs(value).max()
    assert scale > 0, name
    np.testing.assert_allclose(other[name], value, atol=rtol * scale, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("bindings", [
    [],
    ["Unitransformer.label_smoothing = 0.2", "Unitransformer.z_loss = 0.3",
     "Unitransformer.loss_denominator = 3.0"],
    ["Unitransformer.z_loss = 0.0", "LayerStack.recompute_grads = True",
     "Unitransformer.shared_embedding_and_softmax_weights = False"],
    ["Unitransformer.ensemble = 3", "Unitransformer.label_smoothing = 0.2"],
    ["Bitransformer.shared_embedding = False",
     "VocabEmbedding.scale_variable_like_classifier_weights = True"],
], ids=["default", "loss", "separate", "ensemble", "not shared"])
def test_loss_and_gradients_equal_those_of_mesh_tensorflow(bindings):
  check(train(False, *bindings), train(True, *bindings))


def test_losses_on_targets_only_equal_those_of_mesh_tensorflow():
  """The targets are the ids after the first end of sequence."""
  def run(fast):
    return train(fast, "Unitransformer.loss_on_targets_only = True",
                 model_type="delimited_lm", files=["models/lm_v1_ifa.gin"])

  check(run(False), run(True))


@pytest.mark.slow
def test_without_training_there_is_no_z_loss():
  bindings = ["Unitransformer.z_loss = 0.3"]
  evaluated = train(True, *bindings, mode="eval")
  check(train(False, *bindings, mode="eval"), evaluated)
  assert evaluated["loss"] < train(True, *bindings)["loss"]


@pytest.mark.slow
def test_bfloat16_stays_within_its_error_of_float32():
  exact, rounded = train(True), train(True, activation="bfloat16")
  check(exact, rounded, rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [
    ("batch:2", "batch:batch"), ("model:1,batch:1", meshes.LAYOUT)],
                         ids=["batch", "one processor"])
def test_a_mesh_that_does_not_split_the_vocabulary_changes_nothing(mesh):
  check(train(True), train(True, mesh=mesh))


@pytest.mark.parametrize("bindings, options", [
    (["num_heads = 2"], {"mesh_shape": "model:2", "layout": meshes.LAYOUT}),
    (["num_heads = 2"], {"mesh_shape": "model:2,batch:2", "layout": meshes.LAYOUT}),
    ([], {"tpu": True}), (["synthesizer_stack.attention = None"], {}),
    (["get_vocab_embedding_cls.cls = @VocabEmbedding"], {})],
    ids=["split", "split twice", "TPU", "without an attention", "other embedding"])
def test_mesh_tensorflow_computes_the_rest(bindings, options):
  parse(True, *bindings)
  m = models.Model(**options)
  with m.tf_graph.as_default():
    m.model.call_simple(m.ids(INPUTS), m.ids(TARGETS), True, mode="train")
  assert not fast_operations(m)


@pytest.mark.slow
def test_decoding_gives_the_ids_of_mesh_tensorflow():
  decoded = []
  for fast in (True, False):
    parse(fast, "Unitransformer.shared_embedding_and_softmax_weights = False")
    m = models.Model()
    with m.tf_graph.as_default():
      outputs = m.model.decode(m.ids(INPUTS), beam_size=3,
                               max_decode_length=6, decode_length_constant=20)
      ((ids,),), _ = m.run(outputs, scale=1.0)
    decoded.append(ids)
    assert (lookup.LookupOperation in fast_operations(m)) == fast
  assert len(set(decoded[0].flatten())) > 2
  np.testing.assert_array_equal(*decoded)


def test_a_switch_that_is_no_boolean_is_an_error():
  parse("3")
  with pytest.raises(ValueError, match=(
      r"`synthesizer_vocabulary.fast` is 3 but must be True or False")):
    models.Model()
