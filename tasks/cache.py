r"""seqio's `seqio_cache_tasks` with the tasks of this package.

  python -m synthesizer_mtf.tasks.cache --tasks=synth_glue_.* \
    --tfds_data_dir=TFDS --output_cache_dir=CACHE

tokenizes once and for all. The environment names the vocabulary, as
SYNTHESIZER_MTF_VOCAB=/path/of/spm.model, since this command reads no gin file.
Training then reads the cache by `--additional_task_cache_dirs=CACHE` and
`mesh_train_dataset_fn.use_cached = True`. All flags are seqio's.
"""

import sys

from absl import flags
from synthesizer_mtf import patches

_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def main() -> None:
  """Runs seqio's command; without apache-beam, says how to get it."""
  try:
    from seqio.scripts import cache_tasks_main
  except ModuleNotFoundError as error:
    if error.name != "apache_beam":
      raise
    sys.exit("synthesizer_mtf.tasks.cache: caching needs apache-beam, which is "
             "not installed: pip install 'synthesizer-mtf[cache]'.")
  patches.call(
      "module_import", flags.FLAGS, "module_import", ["synthesizer_mtf"])
  patches.call(
      "pipeline_options", flags.FLAGS, "pipeline_options", [f"--runner={_RUNNER}"])
  cache_tasks_main.console_entry_point()


if __name__ == "__main__":
  main()
