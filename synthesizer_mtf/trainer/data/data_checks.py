"""Checks that a task exists, and has the vocabularies, split and metrics of a run.

Without the split or metrics, T5 evaluates nothing and only writes a line to the log.
Everywhere `name` is the name of a task or a mixture; only `check_task` minds if there
is none of this name.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import inspect
import itertools
import os
from typing import Any

from absl import logging
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
import tensorflow.compat.v1 as tf

_TASK, _SPLIT = "MIXTURE_NAME", "utils.run.dataset_split"
_VERBS = {"train": "train on", "perplexity_eval": "evaluate", "eval": "evaluate"}
_CACHED = "mesh_train_dataset_fn.use_cached"
# T5's functions for `utils.run.train_dataset_fn`.
TASKS = "t5.models.mesh_transformer.mesh_train_dataset_fn"
TSV = "t5.models.mesh_transformer.tsv_dataset_fn"


def data_function(config: gin_internals.Config) -> str | None:
  """Returns the module and name of `utils.run.train_dataset_fn`; None if it is unbound.

  Only `TASKS`, T5's own function, reads the task of MIXTURE_NAME.
  """
  return gin_internals.function_name(
      gin_internals.parameters(config, "utils.run").get("train_dataset_fn"))


def _names():
  return {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}


def is_known(name: Any) -> bool:
  """Whether seqio has a task or mixture of this name."""
  return name in _names()


def subtasks(name: Any) -> Sequence[seqio.Task]:
  """The tasks of a task or mixture; none of an unknown name."""
  return (seqio.get_subtasks(seqio.get_mixture_or_task(name)) if is_known(name)
          else [])


def check_task(name: str, what: str = f"`{_TASK}`") -> None:
  """Raises a ValueError unless seqio has a task or mixture of this name.

  The message calls the parameter or flag `what`, here and below.
  """
  if not isinstance(name, str):
    raise checks.Error(f"{what} is {name!r} but must be the name of a task; write it "
                       "in quotes, such as 'synth_text_pairs'.")
  if not is_known(name):
    raise checks.Error(
        f"{what} is {name!r}, which is not a task or mixture; name a registered one, "
        f"or the module that registers it by {checks.called('--module_import')}."
        f"{checks.did_you_mean(name, _names(), near_only=True)}")


def check_vocabularies(name: str, features: Mapping[str, seqio.Feature],
                       what: str = f"`{_TASK}`") -> None:
  """Raises a ValueError if a vocabulary of a task's features cannot be read.

  One in the cloud cannot be read without a network.
  """
  for feature in features.values():
    reason = checks.unreachable(
        getattr(feature.vocabulary, "sentencepiece_model_file", ""))
    try:
      if not reason:
        _ = feature.vocabulary.vocab_size  # Reads the vocabulary's file.
    except tf.errors.OpError as error:
      reason = error.message.splitlines()[0].strip()
    if reason:
      variable = vocabulary_record.VARIABLE
      advice = ("choose a task of local data, and a vocabulary by the environment "
                f"variable {variable}.")
      if os.environ.get(variable):
        advice = (f"choose a task that reads {variable}, such as `{_TASK} = "
                  "'synth_text_pairs'`, also for a TSV file.")
      raise checks.Error(
          f"{what} is {name!r}, whose vocabulary cannot be read ({reason}); "
          f"without a network, {advice}")


def check_lengths(lengths: Any, task: str, features: Mapping[str, Any]) -> None:
  """Raises a ValueError if `utils.run.sequence_length` lacks a feature of the task."""
  parameter = checks.called("utils.run.sequence_length")
  if not features or not isinstance(lengths, Mapping):
    return
  missing = [key for key in features if key not in lengths]
  unknown = [key for key in lengths if key not in features]
  if missing:
    slip = "".join(
        f", but {key!r}, which it does not have" for key in unknown[:1])
    raise checks.Error(
        f"`{parameter}` is {dict(lengths)!r}, without the feature "
        f"{missing[0]!r} of {task!r}{slip}; give a length to each of "
        f"{', '.join(map(repr, features))}.")
  unused = [key for key in unknown if key != "inputs"]  # Language models have none.
  if unused:
    logging.warning("`%s` names %r, which %r does not have; leave it out.%s", parameter,
                    unused[0], task, checks.did_you_mean(
                        unused[0], features, near_only=True))


def check_split(name: str, split: str) -> None:
  """Raises a ValueError if no task of the mixture has the split; T5 skips some."""
  tasks = subtasks(name)
  skipped = [task.name for task in tasks if split not in task.splits]
  if len(skipped) < len(tasks) or not tasks:
    if skipped:
      logging.warning("`%s` is %r, which %s of %r %s not have: only the others are "
                      "read.", checks.called(_SPLIT), split, ", ".join(skipped), name,
                      "does" if len(skipped) == 1 else "do")
    return
  for task in tasks:
    getattr(task.source, "check_split", lambda split: None)(split)
  splits = sorted({split for task in tasks for split in task.splits})
  raise checks.Error(
      f"`{checks.called(_SPLIT)}` is {split!r}, but `{checks.called(_TASK)}` is "
      f"{name!r}, which has no such split; bind it to one of "
      f"{', '.join(map(repr, splits))}.")


def read_by(name: str, split: str) -> dict[str, str]:
  """What an evaluation reads, in words, such as "validation of dev.tsv", by task.

  Returns:
    a dict from the tasks, and from "" for all of them together. Only our own sources
    of files can tell their names.
  """
  words = {}
  for task in subtasks(name):
    names = getattr(task.source, "file_names", lambda split: [])(split)
    few = names if len(names) < 4 else [*names[:3], "..."]
    words[task.name] = f"{split} of {', '.join(few)}" if names else split
  if words:
    words[""] = next(iter(words.values())) if len(words) == 1 else split
  return words


def check_metrics(name: str, given: str | None) -> None:
  """Raises a ValueError for a misspelt metric, or if there are none to compute.

  Our tasks look up metrics that gin names. This function makes them do so before an
  evaluation instead of at its end. `given` is what the evaluation gives to metrics,
  "predictions" or "scores"; None if no metrics will be computed.
  """
  metrics = [task.metric_fns for task in subtasks(name)]
  if given and metrics and not any(metrics):
    raise checks.Error(
        f"`{checks.called(_TASK)}` is {name!r}, which has no metrics to evaluate; "
        "choose another task, or the command's perplexity_eval.gin.")
  if given == "scores":
    _check_any_takes_scores(name, list(itertools.chain(*metrics)))
  for metric in itertools.chain(*metrics):
    if given:
      _check_needs(metric, given, f"`{checks.called(_TASK)}` is {name!r}")


def _parameters(metric):
  return list(inspect.signature(metric).parameters)


def _shown(metric):
  return getattr(getattr(metric, "func", metric), "__name__", repr(metric))


def _check_any_takes_scores(task, metrics):
  """Checks that not all metrics compare texts, which fail on scores."""
  if metrics and all("predictions" in _parameters(metric) for metric in metrics):
    raise checks.Error(
        f"`{checks.called(_TASK)}` is {task!r}, whose metrics "
        f"{', '.join(map(_shown, metrics))} compare predictions, but this evaluation "
        "gives scores to them; evaluate with --gin_file=eval.gin in place of "
        "score_eval.gin, or without eval_with_score in `MtfModel.eval`. The scores "
        "themselves are written by score_from_task.gin and `MtfModel.score`.")


def _check_needs(metric, given, task):
  """Checks that a metric takes what the evaluation gives to it.

  T5 passes texts or scores by position; seqio knows metrics by the names of their
  parameters.
  """
  needed, shown = _parameters(metric), _shown(metric)
  if "aux_values" in needed:
    raise checks.Error(
        f"{task}, whose metric {shown} takes aux_values, which Mesh TensorFlow does "
        "not compute; choose a task with other metrics.")
  if "scores" in needed and given != "scores":
    raise checks.Error(
        f"{task}, whose metric {shown} takes scores, but decoding gives predictions; "
        "evaluate with --gin_file=score_eval.gin in place of eval.gin, or with "
        "eval_with_score=True in `MtfModel.eval`.")
  if given == "scores" and "scores" not in needed:
    logging.warning("%s, whose metric %s takes %s, but is given scores here.",
                    task, shown, " and ".join(needed))


def check_features(name: str, model_type: str, mode: str) -> None:
  """Raises a ValueError unless a task has the texts that a model reads in a mode.

  `model_type` and `mode` are those of `utils.run`. Mesh TensorFlow scores the inputs of
  "lm", too.
  """
  for task in subtasks(name):
    what = f"`{checks.called(_TASK)}` is {name!r}, but {task.name!r} has"
    if "targets" not in task.output_features:
      raise checks.Error(f"{what} no targets to {_VERBS.get(mode, 'score')}; choose a "
                         "task with targets.")
    has_inputs = "inputs" in task.output_features
    if model_type == "lm" and has_inputs and mode in ("train", "perplexity_eval"):
      raise checks.Error(
          f"{what} inputs, and `{checks.called('utils.run.model_type')}` is 'lm', "
          "which reads targets only; choose a task without inputs, or bind "
          "'delimited_lm'.")
    if not has_inputs and (model_type != "lm" or mode in ("eval", "score_eval")):
      raise checks.Error(
          f"{what} no inputs for a model of `{checks.called('utils.run.model_type')}` "
          f"{model_type!r}; choose a task with inputs"
          f"{', or a model of type ' + repr('lm') if model_type != 'lm' else ''}.")


def check_unpacked(what: str) -> None:
  """Raises a ValueError if gin packs examples for `what` needs each in its own row."""
  if gin_files.bound("mesh_eval_dataset_fn.pack", False):
    raise checks.Error(f"`mesh_eval_dataset_fn.pack` is True, but {what} a row for "
                       "each example; bind it to False.")


def check_one_vocabulary(vocabularies: Any, what: str) -> None:
  """Raises a ValueError if texts to score are read with the wrong vocabulary.

  Mesh TensorFlow reads the targets with the vocabulary of the inputs. The message calls
  the parameter that has the targets `what`.
  """
  if isinstance(vocabularies, tuple) and None not in vocabularies and (
      vocabularies[0] != vocabularies[-1]):
    raise checks.Error(
        f"Mesh TensorFlow reads `{what}` with the vocabulary of the inputs, but the "
        "targets have another; score a task instead, by score_from_task.gin or by "
        "`mixture_or_task_name` of `MtfModel.score`.")


def check_cached(name: str) -> None:
  """Raises a ValueError if gin asks T5 to train on a cache, but a task has none.

  An operative_config.gin often asks for a cache that only its author had.
  """
  if not gin_files.bound(_CACHED, False):
    return
  for task in subtasks(name):
    if task.supports_caching and not task.cache_dir:
      raise checks.Error(
          f"`{_CACHED}` is True, but there is no cache of {task.name!r}, which "
          f"`{checks.called(_TASK)}` names; bind it to False, after any "
          f"operative_config.gin, or {_made(task.name)}.")


def check_rates(name: str) -> None:
  """Raises a ValueError if the rates of a mixture need a number that nobody knows."""
  mixture = seqio.get_mixture_or_task(name) if is_known(name) else None
  if not isinstance(mixture, seqio.Mixture):
    return
  for task in mixture.tasks:
    try:
      mixture.get_rate(task)
    except TypeError as error:  # As of None * 1.0 in T5's rate_num_examples.
      if "NoneType" not in str(error) or task.cache_dir or (
          task.num_input_examples("train") is not None):
        raise
      raise checks.Error(
          f"{name!r} mixes {task.name!r} at a rate that depends on its number of "
          "examples, which nothing gives; register its source with "
          f"`num_input_examples`, give it a number as rate, or {_made(task.name)}."
          ) from error


def _made(name):
  return ("make a cache by python -m synthesizer_mtf.tasks.cache "
          f"--tasks={name} --output_cache_dir=DIR, and name it by "
          "--additional_task_cache_dirs=DIR (in Python, seqio.add_global_cache_dirs)")
