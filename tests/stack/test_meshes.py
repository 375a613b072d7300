"""What a mesh may not split is refused, even if the model does not know the mesh.

test_fast_equals_plain.py splits whole models, test_random_configurations.py layers.
"""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from support.decoding import parse
from support.meshes import LAYOUT
from support.reference import check_same
from synthesizer_mtf import checks

IDS = [[5, 9, 3, 1, 7, 8, 1, 0], [8, 4, 7, 1, 5, 1, 0, 0]]
SEGMENTS = [[1, 1, 2, 2, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2, 0, 0]]


def model(notation, layout, known, *bindings):
  parse(notation, "num_heads = 4", "d_ff = 12", "num_layers = 1",
        "RandomLogits.max_length = 8", "ToeplitzLogits.max_length = 8", *bindings)
  m = models.Model("lm", mesh_shape="all:2" if layout else "", layout=layout)
  if not known:  # A model of one's own need not name them.
    m.model.layout = m.model.mesh_shape = None
  return m


def run(notation, layout, known=False, packed=True, mode="train"):
  """The loss and the gradients."""
  m = model(notation, layout, known)
  ids = m.ids(IDS)
  with m.tf_graph.as_default():
    segments = m.ids(SEGMENTS) if packed else mtf.minimum(ids, 1)
  return m.loss_and_gradients(ids, ids, mode, sequence_id=segments)


@pytest.mark.slow
def test_unpacked_rows_may_be_split_along_their_length():
  check_same(run("R+V", "length:all", packed=False), run("R+V", "", packed=False),
             atol=1e-5)


@pytest.mark.parametrize("notation, known, dim, mode", [
    ("R", False, "length", "train"), ("R+V", False, "length", "eval"),
    ("T", False, "length", "train"), ("R+V", True, "length", "train"),
    ("R", False, "memory_length", "eval"), ("DyConv", False, "length", "train"),
    ("V", False, "vocab", "train"), ("V", False, "vocab", "eval")])
def test_a_dimension_that_has_to_be_whole_is_refused(notation, known, dim, mode):
  with pytest.raises(checks.Error) as error:
    run(notation, f"{dim}:all", known, mode=mode)
  for part in (f"The layout splits {dim} over the 2 parts of the mesh dimension 'all'",
               "needs all of it on each processor",
               f"take `{dim}` out of the layout rules"):
    assert part in str(error.value)


def test_decoding_with_a_split_vocabulary_is_refused_too():
  m = model("V", "vocab:all", False, "synthesizer_vocabulary.fast = False")
  with m.tf_graph.as_default(), pytest.raises(checks.Error) as error:
    m.run(m.model.sample_autoregressive(m.ids(np.zeros((2, 8))), temperature=0.0))
  assert "The layout splits vocab over the 2 parts" in str(error.value)


@pytest.mark.slow
def test_a_mesh_dimension_of_size_one_splits_nothing():
  m = model("R", "length:all", False)
  m.mesh_shape = mtf.convert_to_shape("all:1")
  ids = m.ids(IDS)
  check_same(m.loss_and_gradients(ids, ids, sequence_id=m.ids(SEGMENTS)), run("R", ""),
             atol=1e-5)


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
