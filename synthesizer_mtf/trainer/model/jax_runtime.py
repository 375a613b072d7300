"""Runs the trainer's models through JAX: on GPUs, new TPUs, and several devices.

`synthesizer_mtf.runtime = "jax"` chooses it. The Estimator, its hooks, the data, guards
and checkpoints stay as they are; only the mesh is another one (`runtime/mesh.py`).
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import importlib.metadata
import os
import sys
from typing import Any

from absl import logging
import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf import patches
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.runtime import mesh
from synthesizer_mtf.runtime import processes
from synthesizer_mtf.runtime import saving
from synthesizer_mtf.trainer.data import seed
from synthesizer_mtf.trainer.model import exporting
import tensorflow.compat.v1 as tf

_RUNTIMES = "tensorflow", "jax"
_NEEDED = "0.12"  # The JAX that is tested; the extras of pyproject.toml have it.
_PROCESSES = "synthesizer_processes"
_AUTO = "auto"
_LONGEST = 10 ** 6  # Seconds.


@gin.configurable("synthesizer_mtf", module="synthesizer_mtf")
def chosen(runtime: str = "tensorflow", tf32: bool = False) -> tuple[str, bool]:
  """What runs the model.

  Args:
    runtime: "tensorflow", or "jax".
    tf32: whether JAX multiplies float32 numbers with 10 of their 23 bits on GPUs that
      are faster so.

  Returns:
    runtime and tf32.

  Raises:
    ValueError: runtime is neither of the two.
  """
  checks.require(
      runtime in _RUNTIMES, "synthesizer_mtf.runtime", runtime,
      'be "tensorflow" or "jax", which runs on CPUs, GPUs and TPUs',
      'write synthesizer_mtf.runtime = "jax", or add --gin_file=jax.gin')
  checks.check_boolean("synthesizer_mtf.tf32", tf32)
  return runtime, tf32


def is_chosen() -> bool:
  """Whether gin chooses JAX.

  Raises:
    ValueError: JAX cannot be used here.
  """
  if chosen()[0] != "jax":
    return False
  needed = '`synthesizer_mtf.runtime` is "jax", which needs '
  if sys.version_info < (3, 12):
    raise checks.Error(
        f"{needed}Python 3.12 or 3.13, but this is Python {sys.version_info.major}."
        f"{sys.version_info.minor}: install this package there, or leave out "
        "--gin_file=jax.gin.")
  try:
    version = importlib.metadata.version("jax")
  except importlib.metadata.PackageNotFoundError:
    version = ""
  if not version.startswith(f"{_NEEDED}."):
    raise checks.Error(
        f"{needed}JAX {_NEEDED}, but {version and f'JAX {version}' or 'none'} is "
        "installed: pip install 'synthesizer-mtf[cuda]' for NVIDIA's GPUs, [tpu] for "
        f"TPUs, or 'jax=={_NEEDED}.*' for CPUs.")
  return True


@gin.configurable(_PROCESSES, module="synthesizer_mtf")
def place(coordinator_address: str | None = None, num_processes: int | None = None,
          process_id: int | None = None, timeout_seconds: float = 300
          ) -> processes.Place | None:
  """Where this process is among several.

  Args:
    coordinator_address: "HOST:PORT", a free port of the machine of process 0; "auto" if
      JAX finds all; without it, the environment variable JAX_COORDINATOR_ADDRESS.
    num_processes: how many processes there are; by default JAX_NUM_PROCESSES.
    process_id: the index of this process; by default JAX_PROCESS_ID.
    timeout_seconds: the longest wait for the others to start.

  Returns:
    the place; None for a single process.

  Raises:
    ValueError: a value is missing or wrong.
  """
  is_jax = chosen()[0] == "jax"
  variables = os.environ if is_jax else {}
  address: Any = coordinator_address
  if address is None:
    address = variables.get("JAX_COORDINATOR_ADDRESS") or None
  checks.require(
      checks.is_number(timeout_seconds) and 0 < timeout_seconds <= _LONGEST,
      f"{_PROCESSES}.timeout_seconds", timeout_seconds,
      f"be a positive number of seconds, at most {_LONGEST:,}")
  number: Any
  index: Any
  number, index = (
      (int(text) if text.isdigit() else text or None) if value is None else value
      for value, text in ((num_processes, variables.get("JAX_NUM_PROCESSES", "")),
                          (process_id, variables.get("JAX_PROCESS_ID", ""))))
  if address is None and number is None and index is None:
    return None
  if not is_jax:
    raise checks.Error(
        f"`{_PROCESSES}` is bound, but `synthesizer_mtf.runtime` is \"tensorflow\", "
        "which has one process: add --gin_file=jax.gin after the model file.")
  if address == _AUTO:
    return processes.Place(_AUTO, 0, 0, timeout_seconds)
  host, _, port = str(address).rpartition(":")
  checks.require(
      bool(host) and port.isdecimal() and 0 < int(port) < 2 ** 16,
      f"{_PROCESSES}.coordinator_address", address,
      "be the machine of process 0 and a free port there",
      "write it as 'host:1234', here or in JAX_COORDINATOR_ADDRESS")
  checks.check_whole(f"{_PROCESSES}.num_processes", number,
                     remedy="bind it, or set JAX_NUM_PROCESSES")
  checks.require(
      checks.is_whole(index, 0) and index < number, f"{_PROCESSES}.process_id", index,
      f"be an integer from 0 to {number - 1}, another one in each process",
      "bind it, or set JAX_PROCESS_ID")
  if number == 1:
    return None
  return processes.Place(address, number, index, timeout_seconds)


def through_jax(model_fn: Callable[..., Any], use_tpu: Any) -> Callable[..., Any]:
  """Makes an Estimator's model function build models that JAX runs.

  Args:
    model_fn: the result of `utils.tpu_estimator_model_fn`, or a wrapper of it.
    use_tpu: the trainer's `--tpu`.

  Returns:
    a function of the same parameters.

  Raises:
    ValueError: `--tpu` is given, too.
  """
  if use_tpu:
    raise checks.Error(
        "--tpu is TensorFlow's way to TPUs, and `synthesizer_mtf.runtime` is \"jax\": "
        "leave out --tpu to use the TPUs of this machine through JAX, or leave out "
        "--gin_file=jax.gin.")
  leader = processes.leading()
  if leader is None and place() is not None:
    raise checks.Error(
        f"`{_PROCESSES}` is bound, but several processes run only by the command "
        "synthesizer_mesh_transformer, without --use_model_api; leave it out here.")
  _hide_gpus()
  keep_constants_small()
  served = mixed_precision.with_activations(model_fn, "float32")
  model_fn = mixed_precision.in_jax(model_fn)

  def in_jax(features, labels, mode, params=None, config=None):
    if exporting.is_served():
      return served(features, labels, mode, params, config)
    made: list[mesh.JaxMeshImpl] = []
    batch = seed.batch_number() if mode == tf.estimator.ModeKeys.PREDICT else None

    def of_run(original):
      def make(shape, layout, devices=None):
        made.append(mesh.JaxMeshImpl(shape, layout, devices, seed.numbers_of_names,
                                     leader))
        splits.compile_for(made[-1].jax_devices.platform)
        return made[-1]
      return make

    with (patches.wrapped("mesh_impl", mtf.placement_mesh_impl, of_run),
          seed.remembering_loops(), loops_as_functions()):
      spec = model_fn(features, labels, mode, params, config)
    mesh_impl, = made
    logging.info("JAX runs the model on %s.", mesh_impl.jax_devices)
    given = getattr(spec, "scaffold_fn", None) or tf.train.Scaffold
    if mode == tf.estimator.ModeKeys.TRAIN:
      spec = spec._replace(train_op=tf.group(mesh_impl.token.op, spec.train_op),
                           scaffold=saving.Scaffold(mesh_impl))
    else:
      spec = spec._replace(
          scaffold_fn=lambda: saving.Scaffold(mesh_impl, given().local_init_op))
    if batch is not None:
      with tf.control_dependencies([mesh_impl.token]):
        following = batch.assign_add(1)
      with tf.control_dependencies([following]):
        spec = spec._replace(predictions=tf.nest.map_structure(
            tf.identity, spec.predictions))
    mesh_impl.compile(full_precision=not chosen()[1])
    return spec

  return in_jax


def _hide_gpus():
  """Keeps TensorFlow from taking the memory of GPUs, which JAX needs."""
  with contextlib.suppress(RuntimeError):  # TensorFlow already uses its devices.
    tf.config.set_visible_devices([], "GPU")


def keep_constants_small() -> None:
  """Keeps TensorFlow from computing constants while it makes programs.

  Some are as large as the logits of the whole batch: with T5-base and 65,536 tokens
  they take 5 GB of the host. Has an effect before TensorFlow's first use of XLA.
  """
  os.environ.setdefault("TF_XLA_FLAGS", "--tf_xla_disable_constant_folding")


@contextlib.contextmanager
def loops_as_functions() -> Iterator[None]:
  """Makes loops functions, which XLA can compile, within a `with` block."""
  before = tf.control_flow_v2_enabled()
  tf.enable_control_flow_v2()
  try:
    yield
  finally:
    if not before:
      tf.disable_control_flow_v2()
