"""Trains one row of the benchmark for some steps and prints its peak memory.

`benchmark --memory` starts this program as a fresh process for each row:

  python -m synthesizer_mtf.tools.benchmark.memory R+V '{"inputs": 512}'
"""

import json
import pathlib
import sys

from synthesizer_mtf import gin_names
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import model
import tensorflow.compat.v1 as tf

_STEPS = 3


def peak_mebibytes() -> float:
  """Returns the largest resident size that this process has had, in MiB.

  A process inherits the `ru_maxrss` of the process that started it, but VmHWM counts
  from the start of the program.
  """
  status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
  fields = dict(line.split(":", 1) for line in status.splitlines())
  return int(fields["VmHWM"].split()[0]) / 1024


def main(argv: list[str] | None = None) -> None:
  """Trains a row.

  Args:
    argv: the name of the row, its configuration as JSON, and modules to import.
  """
  name, configuration, *modules = argv or sys.argv[1:]
  gin_names.import_modules(modules)
  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.ERROR)
  program = model.build(
      attentions.find_row(name),
      model.Configuration(**json.loads(configuration)), "train")
  for _ in range(_STEPS):
    program.run()
  print(peak_mebibytes())


if __name__ == "__main__":
  main()
