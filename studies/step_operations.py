"""Traces decoding, and prints where a step spends its time.

  python -m studies.step_operations \\
    --rows='V,V in bfloat16' --beam=1 --decode_batch=16

A column of the table has the microseconds of a row's operations, by the part of the
model, and how often they run in a step. Operations that run at the same time each count
in full. Tracing itself takes time, most of all for small operations.
"""

import argparse
import collections
import re
from typing import Any

from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import breakdown
from synthesizer_mtf.tools.benchmark import model
import tensorflow.compat.v1 as tf

# The name of a layer's operation begins after the names of the loop.
_IN_LOOP = re.compile(r"/while/(?:body/_\d+/)?(.+)")
_TYPE = re.compile(r" = (?:_Mkl)?(?:Native)?(\w+)\(")
_SHARE = 0.01  # Of a row's time: the least that gets a line.
Found = dict[tuple[str, str], tuple[float, float]]


def of_steps(stats: Any, steps: int) -> Found:
  """Adds up the operations of a decoding loop.

  Args:
    stats: the `step_stats` of a run that TensorFlow traced.
    steps: the number of decoded tokens.

  Returns:
    a dict from (part of the model, type of operation) to (microseconds of a step, how
    often it runs in a step).
  """
  total, count = collections.Counter(), collections.Counter()
  for device in stats.dev_stats:
    for node in device.node_stats:
      name, kind = _IN_LOOP.search(node.node_name), _TYPE.search(node.timeline_label)
      if name and kind:
        key = breakdown.part(name[1], {}), kind[1]
        total[key] += node.op_end_rel_micros - node.op_start_rel_micros
        count[key] += 1
  return {key: (total[key] / steps, count[key] / steps) for key in total}


def table(results: dict[str, Found]) -> str:
  """Formats what `of_steps` returned for each row, as a table in Markdown."""
  sums = {row: sum(us for us, _ in found.values()) for row, found in results.items()}
  keys = {key: found[key][0] for row, found in results.items() for key in found
          if found[key][0] > _SHARE * sums[row]}
  lines = [["part", "operation", *results]]
  for key in sorted(keys, key=keys.__getitem__, reverse=True):
    cells = [found.get(key, (0, 0)) for found in results.values()]
    lines.append([*key, *(f"{us:.0f} ({count:.0f})" for us, count in cells)])
  lines.append(["all", "", *(
      f"{sums[row]:.0f} ({sum(count for _, count in found.values()):.0f})"
      for row, found in results.items())])
  return tabular.markdown(lines)


def main(argv: list[str] | None = None) -> None:
  """Parses flags, traces one run of each row, and prints the table."""
  parser = argparse.ArgumentParser(
      prog="step_operations", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rows", type=attention_words.split, default=["V"],
                      metavar="A,B,...", help="as for tools/benchmark/ (default: V)")
  for size, text in (("beam", "the width of the beam search (default: %(default)s)"),
                     ("decode_batch", "examples at once (default: %(default)s)")):
    parser.add_argument(f"--{size}", type=arguments.positive, metavar="N", help=text,
                        default=getattr(model.Configuration, size))
  args = parser.parse_args(argv)
  rows = [attentions.find_row(name) for name in args.rows]
  tf.disable_v2_behavior()
  config = model.Configuration(beam=args.beam, decode_batch=args.decode_batch)
  results = {}
  for row in rows:
    program = model.build(row, config, "decode")
    program.run()
    results[row.name] = of_steps(program.trace(), config.targets)
    program.close()
  print(table(results))


if __name__ == "__main__":
  main()
