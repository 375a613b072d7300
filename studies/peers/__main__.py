"""Measures T5 in PyTorch, JAX and CTranslate2 beside the rows of `benchmark`.

  python -m studies.peers --skip_train --skip_eval --rows=V,R --beam=1,4 \\
    --decode_batch=1,16 --baselines=baselines/bin/python

All take turns in one run, as in `synthesizer_mtf.tools.benchmark`, whose flags this
command has.
"""

import functools

from studies.peers import baselines
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.benchmark import __main__ as benchmark


def main(argv: list[str] | None = None) -> None:
  """Parses flags, measures, prints the table and writes the files."""
  parser = benchmark.parser("studies.peers", __doc__)
  parser.add_argument("--baselines", "--peers", metavar="PYTHON", help=(
      "the interpreter of an environment with transformers 4 and some of torch, jax, "
      "flax, optax, ctranslate2; without it, only our rows are measured"))
  with arguments.command(parser, argv, graphs=True) as args:
    benchmark.run(args, *[functools.partial(
        baselines.rows, args.baselines)] * bool(args.baselines))


if __name__ == "__main__":
  main()
