"""`synthesizer_mesh_transformer`: T5's `t5_mesh_transformer` with this package.

It takes the flags of `t5_mesh_transformer`, loads this package, and finds its
gin files from any directory. An exception ends it with one last line and exit
status 1. What our own checks find is told in this line; for any other exception
it also names a file with the traceback. `--verbosity=1` prints every traceback.
"""

import functools
import gc
import logging.config
import os
import signal
import sys

from absl import app
from absl import flags
from absl import logging as absl_logging
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
from synthesizer_mtf.command import cluster
from synthesizer_mtf.command import messages
from synthesizer_mtf.command import missing
from synthesizer_mtf.training import checkpoints
from synthesizer_mtf.training import gin_checks
from synthesizer_mtf.training import stopping
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

_NAME = "synthesizer_mesh_transformer"


def main(argv: list[str]) -> None:
  """Runs T5's main; `argv` as absl hands it on."""
  gin_files.add_search_path()
  with messages.ending(_NAME):
    missing.check_words(argv)
    gin_checks.check_folder(flags.FLAGS.model_dir)
    gin_files.check(flags.FLAGS.gin_file)
    run_job = cluster.of_environment(on_loss=_end)
    checkpoints.check_folder(flags.FLAGS.model_dir)
    with patches.wrapped("run", utils, functools.partial(_prepared, run_job)):
      mesh_transformer_main.main(argv)


def _prepared(run_job, run):
  """`utils.run`, which T5's main calls once gin is parsed."""
  @functools.wraps(run)
  def wrapped(**kwargs):
    missing.check(flags.FLAGS.model_dir)
    gin_checks.check_run(gin_files.bindings(), flags.FLAGS.model_dir)
    run_job(functools.partial(run, **kwargs))

  return wrapped


def _end(error: cluster.LostProcess) -> None:
  """Ends the process while another thread waits within TensorFlow."""
  print(messages.last_line(_NAME, error), file=sys.stderr, flush=True)
  os._exit(1)  # sys.exit would end this thread only.


def _is_of_use(record: logging.LogRecord) -> bool:
  """Leaves out what no user can act on, unless `--verbosity=1` is given."""
  if absl_logging.get_verbosity() >= absl_logging.DEBUG:
    return True
  return (record.filename != "resource_reader.py" and  # gin's; it fails by itself.
          "is deprecated and will be removed" not in str(record.msg))


def console_entry_point() -> None:
  """Starts the command, whatever has imported this module."""
  gc.freeze()  # Not to search the imports at the end of the program saves a second.
  gc.enable()
  signal.signal(signal.SIGTERM, stopping.stop)
  tf.logging.set_verbosity(tf.logging.ERROR)
  tf.disable_v2_behavior()  # It logs a warning that it is deprecated.
  tf.logging.set_verbosity(tf.logging.INFO)
  # absl has a logger of its own, and would print each line a second time.
  logging.config.dictConfig({
      "version": 1, "incremental": True,
      "loggers": {"tensorflow": {"propagate": False}}})
  logging.getLogger("tensorflow").addFilter(_is_of_use)
  # absl's logger asks no filters, its handler does.
  absl_logging.get_absl_handler().python_handler.addFilter(_is_of_use)
  app.run(main)


if __name__ == "__main__":
  console_entry_point()
