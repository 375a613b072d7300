"""Mixed precision on CPUs: products in bfloat16, everything else in float32.

Either `synthesizer_precision.products = "bfloat16"` or T5's `activation_dtype =
"bfloat16"` turns it on. (Without a TPU, T5's command binds `activation_dtype` to
float32. `MtfModel` does the same before it reads its bindings.) With
`activation_dtype`, TensorFlow would keep all activations in bfloat16, including sums
and norms. This module keeps them in float32. TensorFlow's own rewriter casts the
operands of products, and oneDNN sums in float32. This is as fast, and closer to
float32. A processor without bfloat16 products computes everything in float32.

JAX's devices have bfloat16 activations, as TPUs have (`in_jax`).

The rewriter chooses the precision by the type of an operation, for the whole graph.
Norms and optimizers need float32, so every `tf.add` and `tf.multiply` of two tensors
stays in float32. Next to matrix products this costs a cast of each large operand and
one of the result, so these tensors are read and written two or three times. `multiply`,
`add` and `sum_of_rows` use other types of operations, which the rewriter computes in
bfloat16 next to a matrix product. Each number is then computed in float32 and rounded
to 8 bits, as by a cast.
"""

from collections.abc import Callable
from collections.abc import Iterable
import functools
import os
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow_estimator.python.estimator import run_config

_MARK = "synthesizer_mtf/mixed_precision"  # A collection of TensorFlow's graph.
_DTYPES = "utils.get_variable_dtype"
_PARAMETER = f"{_DTYPES}.activation_dtype"
# The effect of bfloat16 variables, by the parameter that asks for them.
_ROUNDED = {
    "slice_dtype": "variables have 8 bits while they train, and updates below 1/256 "
                   "of a value are lost",
    "master_dtype": "checkpoints keep 8 bits of each variable, and training resumes "
                    "with these",
}
_PROCESSOR = "/proc/cpuinfo"
# Linux's flags for AVX512-BF16 and AMX, which oneDNN has kernels for.
_FLAGS = {"avx512_bf16", "amx_bf16"}
# The types of `add` and `multiply`, which follow their neighbours in the rewriter's
# lists. Nothing else in a graph of T5 has them.
OPERATIONS = ("Add", "MulNoNan")
# Changes of the rewriter's lists of operations. Without them, the rewriter would also
# compute norms and sums of gradients in bfloat16 next to a product. MatMul makes the
# sums of Adafactor; the products of the model are Einsum and BatchMatMulV2. The maximum
# of 32,128 logits takes seven times as long in bfloat16 as in float32. A softmax
# between two products may be rewritten, as its operand and result are rounded anyway:
# oneDNN reads and writes bfloat16 but computes in float32. With T5's relative position
# bias among the logits, and in losses, the softmax stays in float32. InplaceUpdate
# writes to the caches of a decoding loop; it would cast the caches that products read
# to float32 and back in each step.
_LISTS = {
    "ALLOWLIST_REMOVE": "MatMul",
    "CLEARLIST_ADD": "InplaceUpdate",
    "CLEARLIST_REMOVE": "Max",
    "INFERLIST_ADD": ",".join(OPERATIONS),
    "INFERLIST_REMOVE": (
        "AddN,AddV2,BiasAdd,Log,LogSoftmax,Mean,Mul,Prod,RealDiv,Rsqrt,Sigmoid,"
        "Softplus,Sqrt,Square,SquaredDifference,Sub,Sum,Tanh"),
}


def on_cpus(
    model_fn: Callable[..., Any]
) -> tuple[Callable[..., Any], config_pb2.ConfigProto | None]:
  """Chooses an Estimator's precision by gin's bindings and the processor.

  Args:
    model_fn: the result of `utils.tpu_estimator_model_fn`.

  Returns:
    a function of the same parameters, and the session's configuration, or None for
    TensorFlow's own.
  """
  rounded = utils.get_variable_dtype().activation_dtype == tf.bfloat16
  if rounded:
    model_fn = with_activations(model_fn, "float32")
  if not rounded and products() == "float32":
    if has_products():
      _once(logging.info, "This processor multiplies faster in bfloat16: "
            f"{checks.called('--gin_file=mixed_precision.gin')} asks for it.")
  elif has_products():
    _once(logging.info, "Products are computed in bfloat16, all else in float32.")
    return _marked(model_fn), session_config()
  else:
    _once(logging.info, "bfloat16 is asked for, but this processor has no products in "
          "it: all is computed in float32.")
  return model_fn, None


def in_jax(model_fn: Callable[..., Any]) -> Callable[..., Any]:
  """Wraps a `model_fn` that JAX runs to have the activations that gin asks for."""
  asked = utils.get_variable_dtype().activation_dtype == tf.bfloat16
  if not asked and products() == "float32":
    return model_fn
  _once(logging.info, "Activations and products are in bfloat16.")
  return with_activations(model_fn, "bfloat16")


@gin.configurable("synthesizer_precision", module="synthesizer_mtf")
def products(products: str = "float32") -> str:
  """The precision of the products on CPUs.

  Args:
    products: "float32" or "bfloat16".

  Returns:
    products.

  Raises:
    ValueError: it is neither of the two.
  """
  checks.require(products in ("float32", "bfloat16"), "synthesizer_precision.products",
                 products, "be \"float32\" or \"bfloat16\"")
  return products


@functools.cache
def _once(log, text):
  log(text)


def warn_of_rounded_variables() -> None:
  """Warns once about each kind of variable that gin binds to bfloat16."""
  for name, meaning in _ROUNDED.items():
    parameter = f"{_DTYPES}.{name}"
    if tf.as_dtype(gin_files.bound(parameter, "float32")) == tf.bfloat16:
      _once(logging.warning, f"`{parameter}` is bfloat16: {meaning}; bind it to "
            "'float32' to keep all bits.")


def warn_of_lost_activations(bound: Iterable[Any] = ()) -> None:
  """Warns once if a person has bound bfloat16 activations, but T5 has bound others.

  Args:
    bound: what `activation_dtype` was in gin before T5 bound it, besides what was
      parsed.
  """
  parsed = gin_files.parsed()
  given = gin_files.own(parsed.given if parsed else gin_files.given_in_command())
  asked = [str(binding.value) for _, binding in given
           if binding.arg_name == "activation_dtype"]
  asked += map(str, bound)
  if asked[-1:] == ["bfloat16"] and products() == "float32" and (
      utils.get_variable_dtype().activation_dtype == tf.float32):
    _once(logging.warning, f"`{_PARAMETER}` is bfloat16, but without "
          f"{checks.called('--tpu')} T5 binds it to float32: activations are float32. "
          f"{checks.called('--gin_file=mixed_precision.gin')} asks for bfloat16.")


def has_products() -> bool:
  """Whether this processor multiplies in bfloat16; False if Linux does not say."""
  try:
    with open(_PROCESSOR, encoding="utf-8") as lines:
      flags = next((line for line in lines if line.startswith("flags")), "")
  except OSError:
    return False
  return not _FLAGS.isdisjoint(flags.split())


def session_config() -> config_pb2.ConfigProto:
  """The configuration of a session that multiplies in bfloat16 where it can.

  The rewriter is on only if the processor has bfloat16 products. On other processors,
  oneDNN would compute the products in float32, but TensorFlow 2.21 would still round
  the operands.

  TensorFlow reads the lists of operations from environment variables. Variables that
  are already set stay. The arithmetic optimizer is off, because the rewriter gives up
  on the graphs that this optimizer makes of mixtures. The optimizer saves no time here.
  """
  for name, operations in _LISTS.items():
    os.environ.setdefault(
        f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name}", operations)
  config = run_config.get_default_session_config()
  if has_products():
    config.graph_options.rewrite_options.MergeFrom(rewriter_config_pb2.RewriterConfig(
        auto_mixed_precision_onednn_bfloat16=rewriter_config_pb2.RewriterConfig.ON,
        arithmetic_optimization=rewriter_config_pb2.RewriterConfig.OFF))
  return config


def _marked(model_fn):
  """Wraps an Estimator's `model_fn` to mark its graphs."""
  def marking(features, labels, mode, params=None, config=None):
    mark_graph()
    return model_fn(features, labels, mode, params, config)

  return marking


def with_activations(model_fn: Callable[..., Any], dtype: str) -> Callable[..., Any]:
  """Wraps an Estimator's `model_fn` to have activations of a dtype."""
  def in_dtype(features, labels, mode, params=None, config=None):
    with gin_files.restored():
      gin_files.bind({_PARAMETER: dtype})
      spec = model_fn(features, labels, mode, params, config)
    utils.get_variable_dtype()  # gin's operative configuration keeps the old dtype.
    return spec

  return in_dtype


def mark_graph() -> None:
  """Declares that the rewriter is on for TensorFlow's default graph."""
  tf.add_to_collection(_MARK, True)


def is_marked() -> bool:
  """Whether the rewriter is on for TensorFlow's default graph."""
  return bool(tf.get_collection(_MARK))


def multiply(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x * y, but 0 where y is 0 even if x is not finite.

  In float32 the operation takes longer than a plain product, so unmarked graphs use the
  plain product.
  """
  return tf.raw_ops.MulNoNan(x=x, y=y) if is_marked() else x * y


def add(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x + y, for marked graphs."""
  return tf.raw_ops.Add(x=x, y=y)


def padding_of_channels(channels: int) -> int:
  """How many more channels make a product faster.

  Products in bfloat16 take blocks of 32 channels: oneDNN takes 1.5 times as long for 65
  channels as for 96.
  """
  return -channels % 32 if is_marked() else 0


def sum_of_rows(x: tf.Tensor) -> tf.Tensor:
  """The sum over the first dimension of [rows, columns].

  In mixed precision it is a product with ones, which reads the rows without a cast.
  """
  if not is_marked():
    return tf.reduce_sum(x, 0)
  ones = tf.ones([1, 1, x.shape.as_list()[0]], x.dtype)
  return tf.reshape(tf.raw_ops.BatchMatMulV2(x=ones, y=x[None]), [-1])
