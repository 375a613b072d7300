"""Tables that packed rows read entry by entry, on meshes."""

import numpy as np
from support import cases
from support import harness
from support.examples import PACKED
from support.examples import tokens


def test_entries_of_a_table_have_the_same_gradients_on_a_mesh():
  """Attention without a softmax reads them so."""
  one, many = (
      harness.forward(
          cases.make_layer("R", softmax=False), tokens(), False, PACKED, True,
          gradients=True, mesh_shape=mesh, layout="batch:b,heads:m")
      for mesh in ("", "b:2,m:3"))
  np.testing.assert_allclose(many[0], one[0], atol=1e-5)
  for name, grad in one[2].items():
    np.testing.assert_allclose(many[2][name], grad, atol=1e-4, err_msg=name)
