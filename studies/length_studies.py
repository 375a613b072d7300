"""Studies of tables and length: tilings of R, and tables that grow.

Both are language models of `language_modeling.gin` with rows of 128, 256 and 512
tokens, 1,024 tokens a step. Nothing but the tables tells the order of tokens, unless a
name says "with bias": T5's relative position bias would hide what a table lost.
"""

from synthesizer_mtf.tools.experiments.study_types import Evaluation
from synthesizer_mtf.tools.experiments.study_types import Row
from synthesizer_mtf.tools.experiments.study_types import Score
from synthesizer_mtf.tools.experiments.study_types import Study
from synthesizer_mtf.tools.experiments.study_types import Task

_TOKENS = 1024
_BIAS = "SyntheticAttention.relative_attention_type"


def _task(length, steps, looks, **params):
  """Returns a task of this length, with its score in nats on 100 held-out batches."""
  return Task(
      f"length_{length}", ("studies/language_modeling.gin",),
      (Evaluation((Score(f"log perplexity, {length}", "log_perplexity", True, 3),),
                  ("perplexity_eval.gin",),
                  {"utils.run.perplexity_eval_steps": 100,
                   "mesh_eval_dataset_fn.seed": 1}),),
      steps, looks, {"utils.run.sequence_length": {"targets": length},
                     "table_length": length, "utils.run.batch_size": _TOKENS // length,
                     **params})


def _row(name, params, attention=None):
  return Row(name, (f"attention/{(attention or name).lower()}.gin",),
             {_BIAS: None, **params})


def _tiles():
  """R whole, and of tiles that repeat; without T5's bias, and with it."""
  for suffix, bias in (("", None), (" with bias", "bias_shared")):
    for tile in (None, 64, 32, 16):
      yield _row(f"R{f' of tiles of {tile}' if tile else ''}{suffix}",
                 {_BIAS: bias, "RandomLogits.tile_length": tile}, "R")


TILINGS = Study(
    "tilings", "R of tiles that repeat, at 128, 256 and 512 tokens",
    tuple(_task(length, 500, looks=2) for length in (128, 256, 512)),
    (*_tiles(), _row("uniform", {"FixedRandomLogits.stddev": 0.0}, "Fix")))

# A table of FD can grow if its b, which the other table has, stays.
_ROWS = tuple(_row(name, {"FactorizedDenseLogits.b": 16} if name == "FD" else {})
              for name in ("R", "FR", "T", "FD", "D"))

GROWING = Study(
    "growing_tables", "Trained at 128 tokens, and then at 256 and 512",
    tuple(_task(length, 200, looks=5, PEAK=0.01) for length in (256, 512)),
    tuple(row._replace(is_warm=True) for row in _ROWS),
    start=Study("growing_tables_start", "Trained at 128 tokens",
                (_task(128, 500, looks=2),), _ROWS))
