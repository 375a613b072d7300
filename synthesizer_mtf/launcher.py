"""`synthesizer_mesh_transformer`: T5's `t5_mesh_transformer` with this package.

It takes the flags of `t5_mesh_transformer`, loads this package, and finds its
gin files from any directory. A mistake in a flag, a gin file or a data file
ends in one sentence and exit status 1; `--verbosity=1` adds the traceback.
Where it may be a mistake of the program, the sentence names a file that holds
the traceback.
"""

import os
import sys

from absl import app
from absl import flags
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
from synthesizer_mtf.command import checkpoints
from synthesizer_mtf.command import cluster
from synthesizer_mtf.command import estimators
from synthesizer_mtf.command import gin_checks
from synthesizer_mtf.command import messages
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf


def main(argv: list[str]) -> None:
  """Runs T5's main; `argv` as absl hands it on."""
  gin_files.add_search_path()
  estimators.apply()
  try:
    with (gin_checks.running(flags.FLAGS.model_dir, flags.FLAGS.use_model_api),
          cluster.joined(on_loss=_end)):
      checkpoints.check_folder(flags.FLAGS.model_dir)
      mesh_transformer_main.main(argv)
  except Exception as error:
    if not (isinstance(error, messages.KINDS) or messages.is_mistake(error)):
      raise
    messages.report(error)
    sys.exit(1)


def _end(error: cluster.LostProcess) -> None:
  """Ends the process while another thread waits within TensorFlow."""
  messages.report(error)
  sys.stderr.flush()
  os._exit(1)  # sys.exit would end this thread only.


def console_entry_point() -> None:
  """What the installed command calls."""
  tf.logging.set_verbosity(tf.logging.ERROR)
  tf.disable_v2_behavior()  # Which warns of itself.
  tf.logging.set_verbosity(tf.logging.INFO)
  patches.assign("propagate", tf.get_logger(), False)
  app.run(main)


if __name__ == "__main__":
  console_entry_point()
