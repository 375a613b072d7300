"""Which rows may hold several examples."""

import mesh_tensorflow as mtf
from support import harness
from support.examples import PACKED
from synthesizer_mtf.attention.inputs import segments


def test_rows_are_packed_unless_their_ids_are_at_most_one_or_the_user_says_so():
  """Mesh TensorFlow makes ids that mark only padding as a minimum with 1."""
  graph = harness.LayerGraph(None, False, *PACKED.shape)
  with graph.tf_graph.as_default():
    ids = graph.constant(PACKED, graph.batch_dim, graph.length_dim)
    made = mtf.minimum(ids, 1)

    def packed(ids, declared=None):
      return segments.is_packed(graph.context(sequence_id=ids), declared)

    assert not packed(made)
    assert all(map(packed, (ids, mtf.minimum(ids, 2), mtf.maximum(ids, 1),
                            mtf.minimum(ids, made))))
    assert packed(made, True)
    assert not packed(ids, False)
    assert not packed(None, True)
