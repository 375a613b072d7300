"""Mixed precision on CPUs: products in bfloat16, everything else in float32.

`synthesizer_precision.products = "bfloat16"` asks for it, and so does T5's
`activation_dtype`, where it is bfloat16. (T5's command binds that to float32 wherever
there is no TPU, and `MtfModel` before it reads its bindings.) TensorFlow would then
keep all activations in bfloat16, sums and norms, too. Here they stay in float32, and
TensorFlow's own rewriter casts what goes into a product, which oneDNN multiplies with
sums in float32: as fast, and nearer to float32. A processor without such products
computes all in float32.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import os
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow_estimator.python.estimator import run_config

_PARAMETER = "utils.get_variable_dtype.activation_dtype"
_PROCESSOR = "/proc/cpuinfo"
# Of Linux: AVX512-BF16 and AMX, which oneDNN has its kernels for.
_FLAGS = {"avx512_bf16", "amx_bf16"}
# What the rewriter would compute in bfloat16 as well, if it stands by a product:
# norms, the softmax, sums of gradients. MatMul makes the sums of Adafactor; the
# products of the model are Einsum and BatchMatMulV2.
_LISTS = {
    "ALLOWLIST_REMOVE": "MatMul",
    "INFERLIST_REMOVE": (
        "Add,AddN,AddV2,BiasAdd,Log,LogSoftmax,Mean,Mul,Prod,RealDiv,Rsqrt,Sigmoid,"
        "Softmax,Softplus,Sqrt,Square,SquaredDifference,Sub,Sum,Tanh"),
}


def on_cpus(
    model_fn: Callable[..., Any]
) -> tuple[Callable[..., Any], config_pb2.ConfigProto | None]:
  """What an Estimator computes with, as gin and the processor have it.

  Args:
    model_fn: of `utils.tpu_estimator_model_fn`.

  Returns:
    a function of the same parameters, and the session's configuration, or None for
    TensorFlow's own.
  """
  rounded = utils.get_variable_dtype().activation_dtype == tf.bfloat16
  if rounded:
    model_fn = _with_float32_activations(model_fn)
  if not rounded and products() == "float32":
    if has_products():
      _say("This processor multiplies faster in bfloat16: "
           "--gin_file=mixed_precision.gin asks for it.")
  elif has_products():
    _say("Products are computed in bfloat16, all else in float32.")
    return model_fn, session_config()
  else:
    _say("bfloat16 is asked for, but this processor has no products in it: all is "
         "computed in float32.")
  return model_fn, None


@gin.configurable("synthesizer_precision", module="synthesizer_mtf")
def products(products: str = "float32") -> str:
  """The precision of the products on CPUs.

  Args:
    products: "float32" or "bfloat16".

  Returns:
    it.

  Raises:
    ValueError: it is something else.
  """
  if products not in ("float32", "bfloat16"):
    raise checks.Error(f"`synthesizer_precision.products` is {products!r} but must be "
                       "\"float32\" or \"bfloat16\"; change it.")
  return products


@functools.cache
def _say(text):
  logging.info(text)


def has_products() -> bool:
  """Whether this processor multiplies in bfloat16; False where Linux does not say."""
  try:
    with open(_PROCESSOR, encoding="utf-8") as lines:
      flags = next((line for line in lines if line.startswith("flags")), "")
  except OSError:
    return False
  return not _FLAGS.isdisjoint(flags.split())


def session_config() -> config_pb2.ConfigProto:
  """Of a session that multiplies in bfloat16.

  TensorFlow reads from the environment which operations those are. What is set
  there already holds. Its arithmetic optimizer is off, which leaves graphs of
  mixtures in a state that the rewriter gives up on; it saves no time here.
  """
  for name, operations in _LISTS.items():
    os.environ.setdefault(
        f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name}", operations)
  config = run_config.get_default_session_config()
  config.graph_options.rewrite_options.MergeFrom(rewriter_config_pb2.RewriterConfig(
      auto_mixed_precision_onednn_bfloat16=rewriter_config_pb2.RewriterConfig.ON,
      arithmetic_optimization=rewriter_config_pb2.RewriterConfig.OFF))
  return config


def _with_float32_activations(model_fn):
  """An Estimator's function of the same parameters, with activations in float32."""
  def in_float32(features, labels, mode, params=None, config=None):
    with _activations_in_float32():
      return model_fn(features, labels, mode, params, config)

  return in_float32


@contextlib.contextmanager
def _activations_in_float32() -> Iterator[None]:
  """Binds them for a while; gin's operative configuration keeps what was bound."""
  bound = gin.query_parameter(_PARAMETER)
  with gin.unlock_config():
    gin.bind_parameter(_PARAMETER, "float32")
  try:
    yield
  finally:
    with gin.unlock_config():
      gin.bind_parameter(_PARAMETER, bound)
    utils.get_variable_dtype()
