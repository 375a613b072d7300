"""Trains one row of the benchmark for some steps and prints its peak memory.

`benchmark --memory` starts this program as a fresh process for each row:

  python -m synthesizer_mtf.tools.benchmarking.memory R+V '{"inputs": 512}'
"""

import json
import resource
import sys

from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import model
import tensorflow.compat.v1 as tf

_STEPS = 3


def peak_mebibytes() -> float:
  """Returns the largest resident size that this process has had, in MiB."""
  try:
    # On Linux a process inherits the `ru_maxrss` of the process that started it.
    # VmHWM counts from the start of the program.
    with open("/proc/self/status", encoding="utf-8") as f:
      fields = dict(line.split(":", 1) for line in f)
    return int(fields["VmHWM"].split()[0]) / 1024
  except (OSError, KeyError):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 ** 2 if sys.platform == "darwin" else 1024)


def main(argv: list[str] | None = None) -> None:
  """Trains the row in the first argument; the second is its configuration as JSON."""
  name, configuration = argv or sys.argv[1:]
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
