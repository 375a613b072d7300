"""The summaries of attention that TensorBoard shows while a model trains."""

import mesh_tensorflow as mtf
from mesh_tensorflow import utils as mtf_utils
import numpy as np
import pytest
from support import models
from support import reference
from support import sessions
from support.decoding import parse
from support.meshes import LAYOUT
from support.meshes import tpu_mesh
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.trainer.model import summaries
import tensorflow.compat.v1 as tf

IDS = [[5, 9, 3, 7, 1], [8, 4, 1, 0, 0]]
EXAMPLES = [[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]]


def layers(number):
  """The names of the layers of stacks with so many blocks."""
  return [f"{stack}/block_00{block}" for stack in ("encoder", "decoder")
          for block in range(number)]


def loss_and_gradients(m, **kwargs):
  ids = m.ids(IDS * 2)
  with intermediates.capture(summaries.AttentionSummaries(image_heads=2)):
    _, loss = m.model.call_simple(ids, ids, True, mode="train", **kwargs)
    return [loss, *mtf.gradients(
        [loss], [v.outputs[0] for v in m.graph.trainable_variables])]


def lower(m, mesh_shape="", layout="", mesh_impl=None):
  return mtf.Lowering(m.graph, {
      m.mesh: mesh_impl or mtf.placement_mesh_impl.PlacementMeshImpl(
          mtf.convert_to_shape(mesh_shape), mtf.convert_to_layout_rules(layout),
          [""] * mtf.convert_to_shape(mesh_shape).size)}, autostack=True)


def written(notation, *bindings, mesh_shape="", layout="", packed=False):
  """The summaries of one step by tag, and the variables by name."""
  parse(notation, "num_heads = 2", "d_ff = 12", *bindings)
  m = models.Model(mesh_shape=mesh_shape, layout=layout)
  with m.tf_graph.as_default():
    ids = m.ids(EXAMPLES * 2)
    loss_and_gradients(m, **({"encoder_sequence_id": ids, "decoder_sequence_id": ids}
                             if packed else {}))
    lowering = lower(m, mesh_shape, layout)
    merged = tf.summary.merge_all()
    generator = np.random.RandomState(0)
    with sessions.start() as session:
      session.run(tf.global_variables_initializer())
      for name, variable in sorted(
          (v.op.name, v) for v in tf.global_variables()):
        if name.split("/")[-1] in ("R", "alpha"):
          variable.load(generator.randn(*variable.shape.as_list()), session)
      session.run(lowering.copy_masters_to_slices())
      summary = tf.Summary.FromString(session.run(merged))
      variables = {v.op.name: v.eval(session) for v in tf.global_variables()
                   if v.op.name.split("/")[-1] in ("R", "alpha")}
  tags = [value.tag for value in summary.value]
  assert len(set(tags)) == len(tags)
  return {value.tag: value for value in summary.value}, variables


def expected(r, decoder, sizes):
  """The mean entropy and distance of R over the queries of examples of these sizes."""
  entropy, distance = [], []
  for size in sizes:
    mask = np.tril(np.ones((size, size))) if decoder else np.ones((size, size))
    weights = reference.softmax(
        np.where(mask, r[:, :size, :size].astype(float), -1e30))
    entropy.append(-(weights * np.log(np.maximum(weights, 1e-30))).sum(-1))
    distance.append((weights * np.abs(np.subtract.outer(
        range(size), range(size)))).sum(-1))
  return [np.concatenate(x, -1).mean() for x in (entropy, distance)]


@pytest.mark.slow
@pytest.mark.parametrize("packed, sizes, number, mesh", [
    (False, [5, 3], 1, {"mesh_shape": "batch:2,model:2", "layout": LAYOUT}),
    (True, [2, 3, 3], 2, {})])
def test_entropy_and_distance_equal_those_of_the_formulas(packed, sizes, number, mesh):
  values, variables = written(
      "R", f"LayerStack.recompute_grads = {packed}", f"num_layers = {number}",
      packed=packed, **mesh)
  for place in layers(number):
    r = variables[f"{place}/layer_000/SyntheticAttention/R"]
    for name, value in zip(("entropy", "distance"), expected(
        r, "decoder" in place, sizes)):
      np.testing.assert_allclose(
          values[f"attention/{place}/{name}"].simple_value, value, rtol=1e-4)


@pytest.mark.slow
def test_alpha_and_an_image_of_each_layer_are_written():
  values, variables = written("R+V", "num_layers = 1")
  names = "alpha/R", "alpha/V", "entropy", "distance", "heads/image"
  assert set(values) == {
      f"attention/{place}/{name}" for place in layers(1) for name in names}
  for place in layers(1):
    alpha = reference.softmax(variables[
        f"{place}/layer_000/SyntheticAttention/alpha"].astype(float)).mean(0)
    for name, value in zip("RV", alpha):
      np.testing.assert_allclose(
          values[f"attention/{place}/alpha/{name}"].simple_value, value, atol=1e-4)
    image = values[f"attention/{place}/heads/image"].image
    assert (image.height, image.width) == (5, 2 * (5 + 1))


def test_nothing_is_made_without_a_watcher():
  parse("R+V")
  m = models.Model()
  with m.tf_graph.as_default():
    ids = m.ids(IDS)
    m.model.call_simple(ids, ids, True, mode="train")
  assert not any(isinstance(op, intermediates.CaptureOperation)
                 for op in m.graph.operations)


def test_on_a_tpu_there_are_scalars_for_the_host_and_no_images():
  parse("R+V", "num_heads = 4", "d_ff = 12", "num_layers = 1")
  m = models.Model(mesh_shape="batch:2,model:4", layout=LAYOUT)
  with m.tf_graph.as_default():
    loss_and_gradients(m)
    lower(m, mesh_impl=tpu_mesh("batch:2,model:4"))
    scalars = tf.get_collection(mtf_utils.SCALAR_SUMMARIES_COLLECTION_KEY)
    assert sorted(tag for tag, _ in scalars) == sorted(
        f"attention/{place}/{name}" for place in layers(1)
        for name in ("alpha/R", "alpha/V", "entropy", "distance"))
    assert all(tensor.shape.rank == 0 for _, tensor in scalars)
    assert not tf.get_collection(tf.GraphKeys.SUMMARIES)


def test_microbatches_are_an_error_that_names_the_parameter():
  parse("R", "num_layers = 1")
  m = models.Model()
  with m.tf_graph.as_default(), pytest.raises(ValueError) as error:
    loss_and_gradients(m, num_microbatches=2)
  assert "`serialize_num_microbatches.tokens_per_microbatch_per_replica` splits" in (
      str(error.value))


def test_each_layer_of_a_stack_has_a_name_of_its_own():
  for scope, name in [
      ("encoder/block_001/layer_000", "encoder/block_001"),
      ("encoder/block_000/layer_002", "encoder/block_000/layer_002"),
      ("decoder/block_000/self_attention", "decoder/block_000/self_attention"),
      ("encoder/layer_002", "encoder/layer_002")]:
    with tf.Graph().as_default(), tf.variable_scope(scope + "/SyntheticAttention"):
      assert intermediates.layer_name() == name
