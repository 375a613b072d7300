"""`synthesizer_mesh_transformer`: T5's `t5_mesh_transformer` with this package.

It takes the flags of `t5_mesh_transformer`, loads this package, and finds its
gin files from any directory. A mistake in a flag, a gin file or a data file
ends in one sentence and exit status 1; `--verbosity=1` adds the traceback.
Where it may be a mistake of the program, the sentence names a file that holds
the traceback.
"""

import functools
import gc
import logging.config
import os
import sys

from absl import app
from absl import flags
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
from synthesizer_mtf.command import cluster
from synthesizer_mtf.command import messages
from synthesizer_mtf.training import checkpoints
from synthesizer_mtf.training import gin_checks
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf


def main(argv: list[str]) -> None:
  """Runs T5's main; `argv` as absl hands it on."""
  gin_files.add_search_path()
  try:
    gin_checks.check_folder(flags.FLAGS.model_dir)
    run_job = cluster.of_environment(on_loss=_end)
    checkpoints.check_folder(flags.FLAGS.model_dir)
    with patches.wrapped("run", utils, functools.partial(_prepared, run_job)):
      mesh_transformer_main.main(argv)
  except Exception as error:
    if not (isinstance(error, messages.KINDS) or messages.is_mistake(error)):
      raise
    messages.report(error)
    sys.exit(1)


def _prepared(run_job, run):
  """`utils.run`, which T5's main calls once gin is parsed."""
  @functools.wraps(run)
  def wrapped(**kwargs):
    gin_checks.check_run(gin_files.bindings(), flags.FLAGS.model_dir)
    run_job(functools.partial(run, **kwargs))

  return wrapped


def _end(error: cluster.LostProcess) -> None:
  """Ends the process while another thread waits within TensorFlow."""
  messages.report(error)
  sys.stderr.flush()
  os._exit(1)  # sys.exit would end this thread only.


def console_entry_point() -> None:
  """Starts the command, whatever has imported this module."""
  gc.freeze()  # Not to search the imports at the end of the program saves a second.
  gc.enable()
  tf.logging.set_verbosity(tf.logging.ERROR)
  tf.disable_v2_behavior()  # Which warns of itself.
  tf.logging.set_verbosity(tf.logging.INFO)
  # absl has a logger of its own, and would print each line a second time.
  logging.config.dictConfig({
      "version": 1, "incremental": True,
      "loggers": {"tensorflow": {"propagate": False}}})
  app.run(main)


if __name__ == "__main__":
  console_entry_point()
