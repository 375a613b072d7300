"""Query chunks wait for each other, so that few of them are in memory.

test_random_configurations.py draws their size.
"""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from support.decoding import parse
from synthesizer_mtf.fast import kernels


@pytest.mark.parametrize("notation", ["V", "FR"])
def test_each_chunk_waits_for_its_neighbour_forward_and_backward(notation, monkeypatch):
  monkeypatch.setattr(kernels, "_QUERY_CHUNK_SIZE", 4)
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
