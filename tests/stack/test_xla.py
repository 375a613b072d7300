"""XLA compiles the steps that TPUs run, with the same results as TensorFlow alone.

The tests run the programs that JAX has on TPUs on a CPU, and the same operations in
TensorFlow. docs/plan_a_pod_tables.md has libtpu's figures for the same steps.
"""

import jax
import numpy as np
import pytest
from support import models
from support import sessions
from support import stacks
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import planning
from synthesizer_mtf.tools.plan_pod import pods
import tensorflow.compat.v1 as tf

pytestmark = stacks.only_new
ONE_CORE = pods.parse_topology("v5e:1x1")
LENGTHS = {"inputs": 12, "targets": 7}
SIZES = [
    "d_model = 16", "d_ff = 24", "num_heads = 4", "d_kv = 6", "num_layers = 1",
    "dropout_rate = 0.0", "table_length = 12", "utils.run.batch_size = 4",
    f"utils.run.sequence_length = {LENGTHS}",
    "utils.get_variable_dtype.activation_dtype = 'float32'",
    "decoder/FixedPatterns.patterns = ['left_context', 'previous', 'current']"]
# A step then changes each variable by its gradient.
GRADIENTS = ["utils.run.optimizer = @optimize.SgdOptimizer"]
UNPACKED = ["mesh_train_dataset_fn.pack = False"]
# What these files bind for each class.
FILES = [f"attention/{name}.gin" for name in (
    "lightconv", "dyconv", "sparse_fixed", "sparse_strided")]


def lowered(encoder, decoder, mode, *params, files=()):
  """The step of a model whose blocks have these attentions, and its graph."""
  variant = planning.Variant(
      "", ["models/bi_v1.gin", "table_length.gin", *FILES, *files],
      [*SIZES, *models.blocks(encoder, decoder), *params])
  variant.parse([f"utils.tpu_mesh_shape.tpu_topology = {ONE_CORE.mesh_name!r}"])
  run = lowering.read_run(ONE_CORE, models.VOCABULARY)
  with tf.Graph().as_default() as graph:
    mesh_impl = lowering.lower(run, mode, jax.devices("cpu")[:1]).mesh_impl
    mesh_impl.compile()
  return mesh_impl, graph


def feature(tensor):
  """A feature with three examples and padding in each row; ids differ between rows."""
  if not tensor.shape.rank:
    return np.int32(9)  # In Adafactor's first step, mere rounding makes full updates.
  name, shape = tensor.op.name.removesuffix("/jax_input"), tensor.shape.as_list()
  segments = np.repeat([1, 2, 3, 0], [shape[-1] // 2, shape[-1] // 4, 1, shape[-1] - (
      shape[-1] // 2) - shape[-1] // 4 - 1])
  if "_segmentation" in name:
    return np.broadcast_to(segments, shape).astype(np.int32)
  ids = np.random.RandomState(len(name)).randint(2, models.VOCABULARY, shape)
  return (ids * (segments > 0)).astype(np.int32)


def check(step, rtol=1e-5, atol=2e-5):
  """TensorFlow and JAX make the same of the same values."""
  mesh_impl, graph = step
  inputs = {tensor: feature(tensor) for tensor in mesh_impl.input_tensors}
  generator, old = np.random.RandomState(0), {}
  for name, variable in sorted(mesh_impl.variables.items()):
    value = generator.randn(*variable.old.shape.as_list())
    value = np.abs(value) if "slot" in name else 0.3 * value
    old[variable.old] = value.astype(variable.old.dtype.as_numpy_dtype)
    mesh_impl.arrays.put(name, old[variable.old], variable.parts)
  new = {name: variable.new for name, variable in mesh_impl.variables.items()
         if variable.new is not None}
  with graph.as_default(), sessions.start() as session:
    plain, state = session.run([mesh_impl._exports, new], {**inputs, **old})
  compiled = mesh_impl.arrays.run([*inputs.values()])
  np.testing.assert_allclose(compiled[0], plain[0], rtol=rtol)
  for name, value in state.items():
    np.testing.assert_allclose(
        mesh_impl.arrays.read(name), value, atol=atol, err_msg=name)


BIAS = "SyntheticAttention.relative_attention_type = 'bias_shared'"
AGAIN = ["LayerStack.recompute_grads = True",
         "serialize_num_microbatches.tokens_per_microbatch_per_replica = 12"]
MIXER = ["attention/mixer.gin"]


# Each variant and each layer is in one of the stacks.
@pytest.mark.slow
@pytest.mark.parametrize("encoder, decoder, params, files", [
    (["R+V", "FD+LD"], ["T", "Fix+D+Pattern", "FR"], [], []),
    (["LightConv", "DyConv"], ["SparseFixed", "SparseStrided"], [], []),
    (["V"], ["R+V"], [BIAS, *AGAIN], []),
    (["R"], ["R+V"], ["Unitransformer.ensemble = 2"], []),
    (["R"], ["R"], [], MIXER)],
    ids=["variants", "layers", "again", "ensemble", "mixer"])
def test_loss_and_gradients_of_packed_rows_are_the_same_compiled(
    encoder, decoder, params, files):
  check(lowered(encoder, decoder, "train", *GRADIENTS, *params, files=files))


@pytest.mark.slow
@pytest.mark.parametrize("decoder, files", [
    (["R+V", "T", "FD", "Fix", "Pattern", "FR+D+LD"], []), (["R"], MIXER),
    (["LightConv", "DyConv", "SparseFixed", "SparseStrided"], [])],
    ids=["variants", "mixer", "layers"])
def test_decoding_is_the_same_compiled(decoder, files):
  check(lowered(["V"], decoder, "infer", files=files))


@pytest.mark.slow
@pytest.mark.parametrize("encoder, decoder, mode", [
    (["R"], ["FD"], "train"), (["Linformer"], ["@SelfAttention", "D+V"], "eval")],
                         ids=str)
def test_unpacked_rows_are_the_same_compiled(encoder, decoder, mode):
  check(lowered(encoder, decoder, mode, *GRADIENTS, *UNPACKED))


@pytest.mark.slow
def test_updates_of_adafactor_are_the_same_compiled():
  # Updates are as large as 1e-3.
  check(lowered(["V"], ["D+V"], "train", *UNPACKED), atol=2e-6)


@pytest.mark.slow
def test_beam_search_is_the_same_compiled():
  check(lowered(["V"], ["R+V", "FD", "@SelfAttention"], "infer",
                "Bitransformer.decode.beam_size = 3",
                "Bitransformer.decode.alpha = 0.6"))


@pytest.mark.slow
def test_a_classifier_is_the_same_compiled():
  check(lowered(["FR+V"], ["FR+V"], "train", *GRADIENTS, "utils.run.sequence_length = "
                "{'inputs': 12, 'targets': 1}", files=["classifier.gin"]))


@pytest.mark.slow
def test_bfloat16_activations_are_the_same_compiled_to_their_precision():
  check(lowered(["V"], ["R+V"], "eval", "utils.get_variable_dtype."
                "activation_dtype = 'bfloat16'"), rtol=2e-2)
