"""When embeddings and losses read rows of the vocabulary; else Mesh TensorFlow's stay.

test_fast_equals_plain.py compares what both compute.
"""

import pytest
from support import meshes
from support import models

FAST = {"lookup", "cross_entropy"}
INPUTS = [[5, 9, 3, 7, 11, 2, 1], [8, 4, 1, 0, 0, 0, 0]]
TARGETS = [[4, 9, 6, 1, 0], [3, 1, 0, 0, 0]]


def parse(fast, *bindings):
  models.parse_gin(["models/bi_v1.gin"], models.TINY + [
      "synthesizer_stack.attention = 'R'",
      "num_layers = 1", f"synthesizer_vocabulary.fast = {fast}", *bindings])


def fast_operations(*bindings, fast=True, **options):
  parse(fast, *bindings)
  m = models.Model(**options)
  with m.tf_graph.as_default():
    m.model.call_simple(m.ids(INPUTS), m.ids(TARGETS), True, mode="train")
  return {op.name.rpartition("/")[2].rstrip("_0123456789")
          for op in m.graph.operations} & FAST


@pytest.mark.parametrize("options", [
    {}, {"mesh_shape": "batch:2", "layout": "batch:batch"},
    {"mesh_shape": "model:1,batch:1", "layout": meshes.LAYOUT}], ids=str)
def test_rows_are_read_if_each_processor_has_the_whole_vocabulary(options):
  assert fast_operations(**options) == FAST
  assert not fast_operations(fast=False, **options)


@pytest.mark.parametrize("bindings, options", [
    (["num_heads = 2"], {"mesh_shape": "model:2", "layout": meshes.LAYOUT}),
    (["num_heads = 2"], {"mesh_shape": "model:2,batch:2", "layout": meshes.LAYOUT}),
    ([], {"tpu": True}), (["synthesizer_stack.attention = None"], {}),
    (["get_vocab_embedding_cls.cls = @VocabEmbedding"], {})],
    ids=["split", "split twice", "TPU", "without an attention", "other embedding"])
def test_mesh_tensorflow_computes_the_rest(bindings, options):
  assert not fast_operations(*bindings, **options)
