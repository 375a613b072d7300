"""The study of abilities: what each attention can do, and what it cannot.

Steps are from runs of V, which solves each task within half of them but where
docs/results/abilities.md says otherwise. Lengths are those of the tasks' defaults.
"""

from collections.abc import Mapping

from synthesizer_mtf.tasks import ability
from synthesizer_mtf.tasks import ability_positions
from synthesizer_mtf.tasks import ability_recall
from synthesizer_mtf.tasks import ability_selection
from synthesizer_mtf.tools.reproduction.study_types import Evaluation
from synthesizer_mtf.tools.reproduction.study_types import Row
from synthesizer_mtf.tools.reproduction.study_types import Score
from synthesizer_mtf.tools.reproduction.study_types import Study
from synthesizer_mtf.tools.reproduction.study_types import Task

_LM = {"utils.run.model_type": "lm"}
_BIAS = {"SyntheticAttention.relative_attention_type": "bias_shared"}


def _task(make: type[ability.Ability], steps: int, peak: float,
          lengths: Mapping[str, int], gin_file: str = "studies/ability.gin",
          **others: object) -> Task:
  """A task whose score is the accuracy on what is asked for."""
  made = make()
  name = made.parameter.partition(".")[0].removeprefix("ability_")
  score = Score(name.replace("_", " "), "token_accuracy", digits=2)
  return Task(name, gin_file, (Evaluation((score,), ("ability_eval.gin",)),), steps,
              looks=1, chance=made.chance, params={
                  "MIXTURE_NAME": f"synth_ability_{name}",
                  "utils.run.sequence_length": dict(lengths), "PEAK": peak, **others})


def _decoder(make, steps, length, peak=0.03):
  return _task(make, steps, peak, {"targets": length}, **_LM)


def _encoder(make, steps, length, peak=0.03):
  return _task(make, steps, peak, {"inputs": length, "targets": 1},
               "studies/ability_encoder.gin")


_DECODERS = (
    _decoder(ability_recall.Recall, 2400, 32),
    _decoder(ability_recall.Induction, 2400, 24),
    _decoder(ability_recall.TwoHops, 3000, 36),
    _decoder(ability_selection.SelectiveCopying, 3000, 31),
    _decoder(ability_selection.Memorization, 400, 32),
    _decoder(ability_positions.Parity, 2000, 41),
    _decoder(ability_selection.MostFrequent, 1500, 34))
_ENCODERS = (
    _encoder(ability_positions.FirstLast, 1000, 24),
    _encoder(ability_positions.SameOffset, 3000, 24),
    _encoder(ability_selection.Missing, 600, 24))
_PAIRS = (
    _task(ability_positions.Reverse, 1000, 0.03, {"inputs": 16, "targets": 16}),
    _task(ability_recall.LookUp, 3000, 0.03, {"inputs": 16, "targets": 16}))


def _plain(names):
  for name in names.split():
    yield Row(name, (f"attention/{name.lower()}.gin",))


_UNIFORM = Row("uniform", ("attention/fix.gin",), {"FixedRandomLogits.stddev": 0.0})


def _with_bias(row):
  return row._replace(name=f"{row.name} with bias", params={**row.params, **_BIAS})


_V, *_OTHERS = _plain("V R Fix FR T D FD R+D R+V D+V FR+V LightConv DyConv")
_D = next(row for row in _OTHERS if row.name == "D")

STUDY = Study(
    "abilities", "What each attention can do, and what it cannot",
    (*_DECODERS, *_ENCODERS, *_PAIRS),
    (_V, *_OTHERS, Row("SparseFixed", ("attention/sparse_fixed.gin",)),
     Row("Linformer", ("attention/linformer.gin",),
         not_on=tuple(task.name for task in (*_DECODERS, *_PAIRS))),
     _UNIFORM, *map(_with_bias, (_V, _D, _UNIFORM))),
    needs_data=False)
