"""Every operation of a model has a kernel for GPUs. The test needs no GPU.

TensorFlow for Linux contains the kernels, and lists them.
"""

import functools

import mesh_tensorflow as mtf
from mesh_tensorflow import placement_mesh_impl
import numpy as np
import pytest
from support import cases
from support import models
from support.decoding import parse
from synthesizer_mtf.attention import notation as notations
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels

pytestmark = pytest.mark.skipif(
    not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for GPUs")

# Operations that check or order others. Soft placement moves them to the CPU.
HOST = {"Assert", "NoOp"}
LAYERS = sorted(set(notations.LAYERS) - {"Linformer"})
IDS = np.random.RandomState(0).randint(2, models.VOCABULARY, (4, 8))
SEGMENTS = [[1, 1, 1, 2, 2, 2, 3, 0]] * 4
# A mixture has the operations of its parts, and those of alpha.
MIXED = ["V", "R", "FD", "FR+T+LD", "Fix+D+Pattern"]


def lowered(m, tensors):
  """The TensorFlow graph of Mesh tensors, with its variables on one GPU."""
  lowering = mtf.Lowering(m.graph, {
      m.mesh: placement_mesh_impl.PlacementMeshImpl(
          m.mesh_shape, m.layout, ["gpu:0"])}, autostack=False)
  for tensor in tensors:
    lowering.export_to_tf_tensor(tensor)
  return m.tf_graph


def training_graph(packed):
  m = models.Model(mesh_shape="all:1")
  with m.tf_graph.as_default():
    segments = m.ids(SEGMENTS)
    kwargs = {"encoder_sequence_id": segments,
              "decoder_sequence_id": segments} if packed else {}
    _, loss = m.model.call_simple(
        m.ids(IDS), m.ids(IDS), True, mode="train", **kwargs)
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
    return lowered(m, [loss, *grads])


def decoding_graph(beams):
  m = models.Model(mesh_shape="all:1")
  with m.tf_graph.as_default():
    return lowered(m, [m.model.decode(
        m.ids(IDS), beam_size=beams, temperature=0.0,
        max_decode_length=8)])


def graph_nodes(graph):
  """The nodes of a graph and of the functions in it."""
  definition = graph.as_graph_def()
  yield from definition.node
  for function in definition.library.function:
    yield from function.node_def


@functools.cache
def gpu_kernels(operation):
  """For each kernel, a dict from attributes to the types that it takes."""
  return [{c.name: set(c.allowed_values.list.type) for c in kernel.constraint
           if c.allowed_values.list.type}
          for kernel in kernels.get_registered_kernels_for_op(operation).kernel
          if kernel.device_type in ("GPU", "DEFAULT")]


def has_gpu_kernel(node):
  """Whether a GPU has a kernel for a node of a graph, and its types."""
  return any(all(node.attr[name].type in types for name, types in kernel.items())
             for kernel in gpu_kernels(node.op))


def lacking(graph):
  """The operations that are on a GPU but have no kernel for it, with their types."""
  nodes = [node for node in graph_nodes(graph)
           if "GPU" in node.device.upper() and node.op not in HOST]
  assert len(nodes) > 100
  return {(node.op, *(tf.as_dtype(a.type).name for a in node.attr.values()
                      if a.type)) for node in nodes if not has_gpu_kernel(node)}


@pytest.mark.slow
@pytest.mark.parametrize("encoder, decoder, packed", [
    (MIXED, LAYERS, True), (LAYERS, MIXED, False)], ids=["packed", "padded"])
def test_a_training_step_has_kernels_for_gpus(encoder, decoder, packed):
  assert set(cases.VARIANTS) == {part for name in MIXED for part in name.split("+")}
  parse((encoder, decoder), "dropout_rate = 0.1")
  assert not lacking(training_graph(packed))


@pytest.mark.slow
@pytest.mark.parametrize("decoder, beams", [(MIXED + LAYERS, 2), (["FR+D+V"], 1)])
def test_decoding_has_kernels_for_gpus(decoder, beams):
  parse((["V"], decoder))
  assert not lacking(decoding_graph(beams))


def test_an_operation_without_a_kernel_is_found():
  with tf.Graph().as_default() as graph:
    tf.strings.length(tf.constant("a"))
  assert not all(map(has_gpu_kernel, graph.as_graph_def().node))
