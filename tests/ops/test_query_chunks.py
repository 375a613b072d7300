"""Query chunks give the same results as all queries at once."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from support.decoding import parse
from support.meshes import loss_and_gradients
from synthesizer_mtf.ops import attend


@pytest.fixture
def chunks(monkeypatch):
  """Cuts 9 inputs into chunks of 4, 4 and 1 queries, and 7 targets into 4 and 3."""
  return lambda: monkeypatch.setattr(attend, "_QUERY_CHUNK_SIZE", 4)


@pytest.mark.slow
@pytest.mark.parametrize("notation, packed, mesh_shape", [
    ("V", True, ""), ("R", False, ""), ("Fix+FD+V", False, ""),
    ("FR+D+V", True, "batch:2,model:2"),
    ("R", False, "batch:2,model:2")])
def test_chunks_do_not_change_loss_and_gradients(
    notation, packed, mesh_shape, chunks):
  at_once = loss_and_gradients(notation, "", packed)
  chunks()
  for name, value in loss_and_gradients(notation, mesh_shape, packed).items():
    np.testing.assert_allclose(value, at_once[name], atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_chunks_can_run_again_in_the_backward_pass(chunks):
  at_once = loss_and_gradients("FR+V", "", False)
  chunks()
  again = loss_and_gradients(
      "FR+V", "", False, "LayerStack.recompute_grads = True")
  for name, value in again.items():
    np.testing.assert_allclose(value, at_once[name], atol=1e-4, err_msg=name)


@pytest.mark.parametrize("notation", ["V", "FR"])
def test_each_chunk_waits_for_its_neighbour_forward_and_backward(notation, chunks):
  chunks()
  parse(notation, "num_layers = 1")
  m = models.Model()
  with m.tf_graph.as_default():
    ids = m.ids(np.ones((2, 12), int))
    _, loss = m.model.call_simple(ids, ids, True, mode="train")
    m.run(*mtf.gradients(
        [loss], [v.outputs[0] for v in m.graph.trainable_variables]))
  waiting = [op for op in m.tf_graph.get_operations()
             if "SyntheticAttention/chunk" in op.name and op.control_inputs]
  later_chunks = 2
  queries_and_causal_masks, means = 2 + 1, 2
  assert len(waiting) == later_chunks * (queries_and_causal_masks + means)
