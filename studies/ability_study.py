"""The study of abilities: what each attention can do, and what it cannot.

The numbers of steps come from runs of V, which solves each task in half of the steps,
unless results/abilities.md says otherwise. Lengths are the tasks' defaults.
"""

from collections.abc import Callable
from collections.abc import Mapping

from studies.tasks import ability
from studies.tasks import ability_positions
from studies.tasks import ability_recall
from studies.tasks import ability_selection
from synthesizer_mtf.tools.experiments.study_types import Evaluation
from synthesizer_mtf.tools.experiments.study_types import Row
from synthesizer_mtf.tools.experiments.study_types import Score
from synthesizer_mtf.tools.experiments.study_types import Study
from synthesizer_mtf.tools.experiments.study_types import Task

LM = {"utils.run.model_type": "lm"}
# With the peak of the learning rate in ability.gin, some seeds of V stay at chance.
LOW_RATE = {"PEAK": 0.01}
_BIAS = {"SyntheticAttention.relative_attention_type": "bias_shared"}


def task(make: Callable[..., ability.Ability], steps: int, lengths: Mapping[str, int],
         gin_file: str = "studies/ability.gin", sizes: Mapping[str, int] = {},
         **others: object) -> Task:
  """Returns a task of these sizes; its score is the accuracy on symbols to predict."""
  made = make(**sizes)
  module = made.parameter.partition(".")[0]
  name = module.removeprefix("ability_")
  score = Score(name.replace("_", " "), "token_accuracy", digits=2)
  return Task(name, (gin_file,), (Evaluation((score,), ("ability_eval.gin",)),), steps,
              looks=1, chance=made.chance, params={
                  "MIXTURE_NAME": f"synth_ability_{name}",
                  "utils.run.sequence_length": dict(lengths), **others,
                  **{f"{module}.{key}": size for key, size in sizes.items()}})


def _decoder(make, steps, tokens, params=LM, **sizes):
  return task(make, steps, {"targets": tokens}, sizes=sizes, **params)


def _encoder(make, steps, tokens, **sizes):
  return task(make, steps, {"inputs": tokens, "targets": 1},
               "studies/ability_encoder.gin", sizes)


_DECODERS = (
    _decoder(ability_recall.Recall, 1600, 24, LM | LOW_RATE, pairs=4, alphabet=8),
    _decoder(ability_recall.Induction, 1500, 17, length=12, piece=5, alphabet=12),
    _decoder(ability_selection.SelectiveCopying, 1500, 21, length=16, letters=4,
             alphabet=18),
    _decoder(ability_selection.Memorization, 300, 32),
    _decoder(ability_positions.Parity, 600, 35, length=17),
    _decoder(ability_selection.MostFrequent, 500, 34))
_ENCODERS = (
    _encoder(ability_positions.FirstLast, 1500, 16, length=16),
    _encoder(ability_positions.SameOffset, 1500, 12, length=12, offset=3, twins=2,
             alphabet=12),
    _encoder(ability_selection.Missing, 700, 24))
_PAIRS = (
    task(ability_positions.Reverse, 600, {"inputs": 16, "targets": 16}),
    task(ability_recall.LookUp, 1500, {"inputs": 16, "targets": 8}))
_TASKS = (*_DECODERS, *_ENCODERS, *_PAIRS)


def _plain(names):
  for name in names.split():
    yield Row(name, (f"attention/{name.lower()}.gin",))


_UNIFORM = Row("uniform", ("attention/fix.gin",), {"FixedRandomLogits.stddev": 0.0})


def _with_bias(row):
  return row._replace(name=f"{row.name} with bias", params={**row.params, **_BIAS})


def _only_on(row, tasks):
  return row._replace(not_on=tuple(task.name for task in _TASKS if task not in tasks))


def _of_blocks(row, number):
  """Returns the row with another number of blocks, on tasks where depth may matter."""
  return _only_on(row._replace(
      name=f"{row.name} of {number} block{'s' if number > 1 else ''}",
      params={**row.params, "num_layers": number}), _DECODERS[:3])


def _with_uniform_cross_attention(row):
  """Returns the row with a decoder that cannot choose among the encoder's tokens."""
  return _only_on(row._replace(
      name=f"{row.name} and uniform cross-attention",
      gin_files=(*row.gin_files, "studies/uniform_cross_attention.gin")), _PAIRS)


_V, _R, *_OTHERS = _plain("V R Fix FR T D FD R+D R+V D+V FR+V LightConv DyConv")
_D = next(row for row in _OTHERS if row.name == "D")
_LINFORMER = Row("Linformer", ("attention/linformer.gin",))
_V_WITH_BIAS = _with_bias(_V)
_CONTROLS = (Row("FrozenQK", ("studies/frozen_qk.gin",)),
             Row("MixiT", ("studies/mixit.gin",)))

STUDY = Study(
    "abilities", "What each attention can do, and what it cannot", _TASKS,
    (_V, _R, *_OTHERS, Row("SparseFixed", ("attention/sparse_fixed.gin",)),
     _only_on(_LINFORMER, _ENCODERS), _UNIFORM,
     _V_WITH_BIAS, *map(_with_bias, (_D, _UNIFORM)),
     _of_blocks(_V_WITH_BIAS, 1), *(_of_blocks(row, 4) for row in (_R, _D)),
     *map(_with_uniform_cross_attention, (_V_WITH_BIAS, _R)), *_CONTROLS),
    needs_data=False)
