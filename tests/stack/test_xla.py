"""XLA compiles the steps that TPUs run, with the same results as TensorFlow alone.

The tests run the steps of one core of a TPU on a CPU, with XLA's loops.
docs/plan_a_pod_tables.md has libtpu's figures for the same steps.
"""

import numpy as np
import pytest
from support import models
from synthesizer_mtf.tools.plan_pod import __main__ as plan_pod
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.tools.plan_pod import programs
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.compiler.xla.service import hlo_pb2

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


def lowered(encoder, decoder, mode, *params, files=(), topology=ONE_CORE):
  """The step of a model whose blocks have these attentions."""
  variant = plan_pod.Variant(
      "", ["models/bi_v1.gin", "table_length.gin", *FILES, *files],
      [*SIZES, *models.blocks(encoder, decoder), *params])
  variant.parse([f"utils.tpu_mesh_shape.tpu_topology = {topology.mesh_name!r}"])
  run = lowering.read_run(topology, models.VOCABULARY)
  with tf.Graph().as_default():
    return lowering.lower(run, mode, loops_as_functions=True)


def feature(name, spec):
  """A feature with three examples and padding in each row; ids differ between rows."""
  if not spec.shape.rank:
    return tf2.constant(0, spec.dtype)  # The number of the core.
  length = spec.shape[-1]
  segments = np.repeat([1, 2, 3, 0], [length // 2, length // 4, 1,
                                      length - length // 2 - length // 4 - 1])
  if name.endswith("_segmentation"):
    return tf2.constant(np.broadcast_to(segments, spec.shape), spec.dtype)
  ids = np.random.RandomState(len(name)).randint(2, models.VOCABULARY, spec.shape)
  return tf2.constant(ids * (segments > 0), spec.dtype)


def called(step, jit_compile):
  """The step's result, and its variables afterwards."""
  made = programs.function(step, jit_compile)
  generator = np.random.RandomState(0)
  for name in sorted(made.variables):
    variable = made.variables[name]
    value = generator.randn(*variable.shape.as_list())
    value = np.abs(value) if "slot" in name else 0.3 * value
    # In Adafactor's first step, gradients of mere rounding make full updates.
    value = 9 if name == "global_step" else value
    variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))
  result = made.call(*map(feature, made.features, made.call.input_signature))
  return result.numpy(), {name: v.numpy() for name, v in made.variables.items()}


def check(step, atol=2e-5):
  plain, compiled = called(step, False), called(step, True)
  np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-5)
  for name, value in plain[1].items():
    np.testing.assert_allclose(compiled[1][name], value, atol=atol, err_msg=name)


@pytest.mark.slow
def test_a_program_has_a_parameter_for_the_core_each_feature_and_each_variable():
  step = lowered(["V"], ["R"], "train", topology=pods.parse_topology("v5e:2x2"))
  made = programs.function(step)
  module = hlo_pb2.HloModuleProto.FromString(programs.of_step(step))
  shapes = sorted(tuple(each.dimensions) for each in
                  module.host_program_shape.parameters)
  assert shapes == sorted([
      *(tuple(spec.shape) for spec in made.call.input_signature),
      *(tuple(variable.shape) for variable in made.variables.values())])


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
  step = lowered(["V"], ["R+V"], "train", *GRADIENTS, "utils.get_variable_dtype."
                 "activation_dtype = 'bfloat16'")
  plain, compiled = (called(step, jit) for jit in (False, True))
  np.testing.assert_allclose(compiled[0], plain[0], rtol=2e-2)
