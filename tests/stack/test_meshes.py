"""Whole models on CPU meshes: losses and gradients do not depend on the split.

test_random_configurations.py splits each variant's layer.
"""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from support.decoding import parse
from support.meshes import LAYOUT
from support.meshes import loss_and_gradients
from support.reference import check_same
from synthesizer_mtf.fast import attend

pytestmark = pytest.mark.slow

CPUS, TPUS = False, True
ALTERNATE = [f"{name}.pattern = 'alternate'" for name in (
    "SparseFixed", "SparseStrided")]


@pytest.mark.parametrize("encoder, decoder, packed, mesh_shape, tpu, bindings", [
    (["R+T+Pattern"], ["FR+D+V"], True, "batch:2,model:2", CPUS, []),
    (["Fix+FD+V"], ["R+T"], True, "model:4", TPUS, []),
    (["R"], ["D+V"], False, "batch:2,model:2", CPUS, []),
    (["LightConv"], ["DyConv"], True, "batch:2,model:2", CPUS, []),
    (["SparseFixed"], ["SparseStrided"], True, "batch:2,model:2", CPUS, ALTERNATE)],
                         ids=str)
def test_loss_and_gradients_do_not_depend_on_the_mesh(
    encoder, decoder, packed, mesh_shape, tpu, bindings):
  one, split = [
      loss_and_gradients((encoder, decoder), shape, packed, *bindings, tpu=tpu)
      for shape, tpu in (("", CPUS), (mesh_shape, tpu))]
  check_same(split, one)


def test_the_path_of_tpus_computes_the_same_ensemble():
  cpus, tpus = [
      loss_and_gradients((["R"], ["R+V"]), "", True, "Unitransformer.ensemble = 2",
                         tpu=tpu) for tpu in (CPUS, TPUS)]
  check_same(tpus, cpus)


@pytest.mark.parametrize("encoder, decoder, packed, bindings", [
    (["R+T", "R"], ["FR+D+V", "Pattern+V"], True, []),
    (["R+V"], ["R+V"], False, ["SyntheticAttention.softmax = False"]),
    (["LightConv"], ["DyConv"], True, []),
    (["SparseFixed"], ["SparseStrided"], True, [])], ids=str)
def test_layers_can_run_again_in_the_backward_pass(encoder, decoder, packed, bindings):
  once, again = [
      loss_and_gradients((encoder, decoder), "", packed, *bindings,
                         f"LayerStack.recompute_grads = {recompute}")
      for recompute in (False, True)]
  check_same(again, once)


def test_chunks_of_queries_can_run_again_in_the_backward_pass(monkeypatch):
  """Cuts 9 inputs into chunks of 4, 4 and 1 queries, and 7 targets into 4 and 3."""
  at_once = loss_and_gradients("FR+V", "", False)
  monkeypatch.setattr(attend, "_QUERY_CHUNK_SIZE", 4)
  again = loss_and_gradients(
      "FR+V", "", False, "LayerStack.recompute_grads = True")
  check_same(again, at_once)


def test_steps_can_be_split_into_microbatches():
  losses = []
  for splits in (1, 2):
    parse("R+V", "num_layers = 1")
    m = models.Model()
    with m.tf_graph.as_default():
      batch = m.ids([[5, 9, 3, 1, 0, 0], [8, 4, 7, 1, 5, 1]])
      features = {"inputs": batch, "targets": batch,
                  "ids": m.ids([[1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 2, 2]])}

      def model_fn(f, m=m, splits=splits):
        return {"loss": m.model.call_simple(
            f["inputs"], f["targets"], True, mode="train",
            encoder_sequence_id=f["ids"], decoder_sequence_id=f["ids"],
            num_microbatches=splits)[1]}

      grads, results = mtf.serialize_training_step(
          features, model_fn, batch.shape.dims[0], splits)
      (values,), _ = m.run(results["loss"], *grads, scale=0.3)
    losses.append(values)
  for one, two in zip(*losses):
    np.testing.assert_allclose(two, one, atol=1e-4)


def test_decoding_does_not_depend_on_the_mesh():
  results = []
  for mesh_shape in ("", "batch:2,model:2"):
    parse((["R"], ["R", "Fix+FD+V"]), "num_heads = 4", "d_ff = 12")
    m = models.Model(mesh_shape=mesh_shape, layout=LAYOUT)
    with m.tf_graph.as_default():
      outputs = m.model.decode(
          m.ids([[5, 9, 3, 1], [8, 4, 1, 0]]), max_decode_length=6)
      (values,), _ = m.run(outputs, scale=1.0)
    results.append(values[0])
  np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("notation, layer", [
    ("R", "SyntheticAttention"), *[(name, name) for name in (
        "Linformer", "LightConv", "DyConv", "SparseFixed", "SparseStrided")]])
def test_heads_that_do_not_divide_over_the_mesh_are_an_error(notation, layer):
  models.parse_gin([], models.TINY + [
      "num_heads = 3", f"encoder/synthesizer_stack.attention = '{notation}'"])
  m = models.Model(mesh_shape="model:2", layout=LAYOUT)
  with m.tf_graph.as_default(), pytest.raises(ValueError) as error:
    ids = m.ids(np.ones((2, 5), int))
    m.model.call_simple(ids, ids, True, mode="train")
  assert (f"`{layer}.num_heads` is 3 but `utils.run.layout_rules` splits "
          "heads over the 2 parts of the mesh dimension 'model'"
          ) in str(error.value)
