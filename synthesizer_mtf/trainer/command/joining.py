"""Runs the command in one of several processes, which share a mesh through JAX.

`runtime/processes.py` says how. The user starts the same command in each process, and
tells it its place by `synthesizer_processes` in gin, or by JAX's environment variables.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import json
import os
import sys

from synthesizer_mtf import checks
from synthesizer_mtf.runtime import processes
from synthesizer_mtf.trainer.model import jax_runtime

_OLD = "TF_CONFIG"  # The variable that described clusters of TensorFlow.


def check_environment(has_tpu: bool) -> None:
  """Raises a ValueError for a cluster of TensorFlow without TPUs."""
  try:
    described = json.loads(os.environ.get(_OLD, "{}"))
  except json.JSONDecodeError:
    return
  if not has_tpu and isinstance(described, dict) and described.get("cluster"):
    raise checks.Error(
        f"{_OLD} describes a cluster, but several processes run through JAX now: unset "
        "it, and start each process with --gin_file=jax.gin and "
        "`synthesizer_processes`, as docs/clusters.md explains.")


def run(job: Callable[[], None],
        on_loss: Callable[[processes.LostProcess], None]) -> None:
  """Runs a job here, or in process 0, which the others follow.

  Args:
    job: a function without arguments; it alone reads data, and writes.
    on_loss: called in another thread if another process ends; it must end this one.

  Raises:
    ValueError: gin does not describe the processes, or they do not fit together.
    LostProcess: a process did not start in time.
  """
  place = jax_runtime.place()
  if place is None:
    job()
    return
  place = place if place.number else processes.detected(place.timeout)
  if place.index:
    processes.follow(place, on_loss)
    return
  with processes.leading_others(place, on_loss):
    job()


@contextlib.contextmanager
def ending() -> Iterator[None]:
  """Ends a failed process at once; at its exit JAX would wait for the others."""
  try:
    yield
  except SystemExit as end:
    if end.code and processes.is_joined():
      if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(end.code if isinstance(end.code, int) else 1)
    raise
