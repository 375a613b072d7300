r"""seqio's `seqio_cache_tasks` with the tasks of this package.

  python -m synthesizer_mtf.tasks.cache --tasks=synth_glue_.* \
    --tfds_data_dir=TFDS --output_cache_dir=CACHE

tokenizes each task once. This command reads no gin file, so the environment names the
vocabulary, as SYNTHESIZER_MTF_VOCAB=/path/of/spm.model.
Training then reads the cache by `--additional_task_cache_dirs=CACHE` and
`mesh_train_dataset_fn.use_cached = True`. All flags are seqio's. A file in the
cache, made_with.json, says what it was made with, and training with another
vocabulary is refused.
"""

import functools
import gc
import os
import sys

from absl import app
from absl import flags
import seqio
from synthesizer_mtf.tasks import cache_record
import tensorflow.compat.v2 as tf

# These flags come before the user's own. seqio knows only the tasks that a module
# registers. The DirectRunner of newer versions of Beam first asks a web site for
# another runner.
_FLAGS = ["--module_import=synthesizer_mtf",
          "--pipeline_options=--runner="
          "apache_beam.runners.portability.fn_api_runner.FnApiRunner"]


def main() -> None:
  """Runs seqio's command; if apache-beam is missing, says how to get it."""
  try:
    from seqio.scripts import cache_tasks_main
  except ModuleNotFoundError as error:
    if error.name != "apache_beam":
      raise
    sys.exit("synthesizer_mtf.tasks.cache: caching needs apache-beam, which is "
             "not installed: pip install 'synthesizer-mtf[cache]'.")
  app.run(functools.partial(_cache, cache_tasks_main.main),
          [sys.argv[0], *_FLAGS, *sys.argv[1:]])


def _cache(seqios_main, argv):
  """Runs seqio's main, and writes records into the caches that it makes."""
  folder = flags.FLAGS.output_cache_dir or ""
  before = _complete(folder)
  seqios_main(argv)
  for name, time in _complete(folder).items():
    if before.get(name) != time:
      cache_record.write(
          seqio.TaskRegistry.get(name), os.path.join(folder, name))


def _complete(folder):
  """Returns a dict from the tasks cached in a folder to the time of completion."""
  marks = tf.io.gfile.glob(os.path.join(folder, "*", "COMPLETED"))
  return {os.path.basename(os.path.dirname(mark)): tf.io.gfile.stat(mark).mtime_nsec
          for mark in marks}


if __name__ == "__main__":
  gc.freeze()  # The launcher does the same.
  main()
