"""Whole models on CPU meshes: losses and gradients do not depend on the split."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import cases
from support import models
from support.decoding import parse
from support.meshes import LAYOUT
from support.meshes import loss_and_gradients

pytestmark = pytest.mark.slow

# A mesh splits batch and heads of each variant, alone or in a mixture. One mesh or
# another splits each variant alone. CPUs and TPUs have split each variant.
CPUS, TPUS = False, True
MESHES = [
    ("R", "batch:2,model:2", CPUS), ("T", "batch:2,model:2", CPUS),
    ("T", "batch:2,model:2", TPUS), ("Pattern", "batch:2,model:2", CPUS),
    ("Pattern", "batch:2,model:2", TPUS), ("FR+D+V", "batch:2,model:2", CPUS),
    ("Fix+FD+V", "batch:2,model:2", TPUS),
    ("R", "batch:2", TPUS), ("V", "batch:2", CPUS), ("FR", "batch:2", TPUS),
    ("D", "batch:2", TPUS),
    ("R", "model:2", TPUS), ("Fix", "model:2", CPUS), ("FD", "model:2", CPUS),
    ("R+D", "model:2", CPUS),
    ("FR+D+V", "model:4", TPUS), ("FD", "batch:4", CPUS)]


def test_every_variant_is_split_both_ways_and_on_both_kinds_of_devices():
  assert set(cases.VARIANTS) <= {name for name, _, _ in MESHES}
  assert set(cases.VARIANTS) == {
      part for name, mesh, _ in MESHES if "," in mesh for part in name.split("+")}
  for kind in (CPUS, TPUS):
    assert set(cases.VARIANTS) == {
        part for name, _, tpu in MESHES if tpu == kind for part in name.split("+")}


@pytest.fixture(scope="module")
def one_device():
  """The loss and gradients on one device, computed once for each notation."""
  known = {}

  def get(notation, packed):
    if (notation, packed) not in known:
      known[notation, packed] = loss_and_gradients(notation, "", packed)
    return known[notation, packed]

  return get


@pytest.mark.parametrize("notation, mesh_shape, tpu", MESHES)
def test_loss_and_gradients_do_not_depend_on_the_mesh(
    notation, mesh_shape, tpu, one_device):
  expected = one_device(notation, packed=True)
  split = loss_and_gradients(notation, mesh_shape, packed=True, tpu=tpu)
  for name, value in expected.items():
    np.testing.assert_allclose(split[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("notation", ["R", "R+V"])
def test_the_path_of_tpus_computes_the_same_ensemble(notation):
  cpus, tpus = [
      loss_and_gradients(notation, "", True, "Unitransformer.ensemble = 2", tpu=tpu)
      for tpu in (False, True)]
  for name, value in cpus.items():
    np.testing.assert_allclose(tpus[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("notation", ["R", "D+V"])
def test_unpacked_rows_do_not_depend_on_the_mesh_either(notation, one_device):
  expected = one_device(notation, packed=False)
  split = loss_and_gradients(notation, "batch:2,model:2", packed=False)
  for name, value in expected.items():
    np.testing.assert_allclose(split[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("notation, packed", [
    ("R", True), ("FR+D+V", False), ("Pattern+R", True)])
def test_layers_can_run_again_in_the_backward_pass(notation, packed):
  once, again = [
      loss_and_gradients(notation, "", packed, "num_layers = 2",
                         f"LayerStack.recompute_grads = {recompute}")
      for recompute in (False, True)]
  for name, value in once.items():
    np.testing.assert_allclose(again[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_steps_can_be_split_into_microbatches(packed):
  losses = []
  for splits in (1, 2):
    parse("R+V", "num_layers = 1")
    m = models.Model()
    with m.tf_graph.as_default():
      batch = m.ids([[5, 9, 3, 1, 0, 0], [8, 4, 7, 1, 5, 1]])
      features = {"inputs": batch, "targets": batch}
      if packed:
        features["ids"] = m.ids([[1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 2, 2]])

      def model_fn(f, m=m, splits=splits):
        ids = f.get("ids")
        return {"loss": m.model.call_simple(
            f["inputs"], f["targets"], True, mode="train",
            encoder_sequence_id=ids, decoder_sequence_id=ids,
            num_microbatches=splits)[1]}

      grads, results = mtf.serialize_training_step(
          features, model_fn, batch.shape.dims[0], splits)
      (values,), _ = m.run(results["loss"], *grads, scale=0.3)
    losses.append(values)
  for one, two in zip(*losses):
    np.testing.assert_allclose(two, one, atol=1e-4)


@pytest.mark.parametrize("notation", ["R", "Fix+FD+V"])
def test_decoding_does_not_depend_on_the_mesh(notation):
  results = []
  for mesh_shape in ("", "batch:2,model:2"):
    parse(notation, "num_heads = 4", "d_ff = 12", "num_layers = 1")
    m = models.Model(mesh_shape=mesh_shape, layout=LAYOUT)
    with m.tf_graph.as_default():
      outputs = m.model.decode(
          m.ids([[5, 9, 3, 1], [8, 4, 1, 0]]), max_decode_length=6)
      (values,), _ = m.run(outputs, scale=1.0)
    results.append(values[0])
  np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("notation, parameter", [
    ("R", "SyntheticAttention"), ("Linformer", "Linformer")])
def test_heads_that_do_not_divide_over_the_mesh_are_an_error(
    notation, parameter):
  models.parse_gin([], models.TINY + [
      "num_heads = 3", f"encoder/synthesizer_stack.attention = '{notation}'"])
  m = models.Model(mesh_shape="model:2", layout=LAYOUT)
  with m.tf_graph.as_default(), pytest.raises(ValueError) as error:
    ids = m.ids(np.ones((2, 5), int))
    m.model.call_simple(ids, ids, True, mode="train")
  assert (f"`{parameter}.num_heads` is 3 but `utils.run.layout_rules` splits "
          "heads over the 2 parts of the mesh dimension 'model'"
          ) in str(error.value)
