"""The study of heads: 1 to 16 at equal width.

The paper says that it is "imperative to have multiple heads". All rows have heads *
d_kv = d_model = 64, so q, k, v and o have the same size. R has a table for each head,
so its parameters grow with the heads.
"""

from studies import ability_study
from synthesizer_mtf.tools.experiments.study_types import Study

_WIDTH = 64
_NUMBERS = (1, 2, 4, 8, 16)
_TASKS = ("selective_copying", "parity", "most_frequent", "first_last", "same_offset")


def _rows():
  rows = {row.name: row for row in ability_study.STUDY.rows}
  for name in ("R", "V with bias"):
    for number in _NUMBERS:
      yield rows[name]._replace(
          name=f"{name} of {number} head{'s' if number > 1 else ''}",
          params={**rows[name].params, "num_heads": number, "d_kv": _WIDTH // number})


STUDY = Study(
    "ability_heads", "How many heads each ability takes, at equal width",
    tuple(task for task in ability_study.STUDY.tasks if task.name in _TASKS),
    tuple(_rows()), needs_data=False)
