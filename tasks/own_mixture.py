"""A mixture of tasks that gin names, with their rates.

  MIXTURE_NAME = "synth_own_mixture"
  synthesizer_mtf.tasks.mixture.rates = {
      "synth_text_pairs.news": 3.0, "synth_text_pairs.chat": 1.0, "synth_squad": 0.5}
  news/synthesizer_mtf.tasks.pairs.train = "/data/news.tsv"
  chat/synthesizer_mtf.tasks.pairs.train = "/data/chat.tsv"

Each name is a task or a mixture. If a task reads the user's own files, a dot and a
scope may follow its name; gin binds the files in this scope. Rates are shares of the
examples, as in seqio.
"""

from collections.abc import Mapping
import functools

import gin
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
import tensorflow.compat.v2 as tf

NAME = "synth_own_mixture"
_PARAMETER = "synthesizer_mtf.tasks.mixture.rates"
_TASKS = ("synth_text_pairs", "synth_text_span_corruption", "synth_text_lm")
_FILES = [f"synthesizer_mtf.tasks.{kind}.{split}" for kind in ("text", "pairs")
          for split in ("train", "validation", "test")]
_UNBOUND = object()  # None is a value that gin may bind.


@gin.configurable("mixture", module="synthesizer_mtf.tasks")
def _rates(rates=None):
  """Returns a dict from names of tasks to numbers; gin passes it."""
  if not isinstance(rates, Mapping) or not rates or not all(
      isinstance(rate, (int, float)) and rate > 0 for rate in rates.values()):
    raise checks.Error(
        f"`{_PARAMETER}` is {rates!r} but must be a dict from names of tasks to "
        "numbers above 0; write it as {'synth_text_pairs': 3.0, 'synth_squad': 1.0}.")
  return rates


class OwnMixture(seqio.Mixture):
  """A `seqio.Mixture` whose members gin names; gin is parsed after imports."""

  def __init__(self):
    self._name = NAME
    self._source_info = None
    self._sample_fn = functools.partial(
        tf.data.Dataset.sample_from_datasets, stop_on_empty_dataset=True)

  @property
  def tasks(self) -> list[seqio.Task]:
    return _chosen().tasks

  @property
  def rate_per_task_name(self) -> Mapping[str, float]:
    return _chosen().rate_per_task_name

  @property
  def total_rate(self) -> float:
    return _chosen().total_rate

  def get_rate(self, task: seqio.Task) -> float:
    return _chosen().get_rate(task)


def _chosen():
  """Returns the mixture of gin's rates."""
  rates = tuple(_rates().items())
  for name, _ in rates:
    member(name)  # Gin may have changed since the mixture was made.
  return _made(rates)


@functools.cache
def _made(rates):
  """Returns the mixture of ((name, rate), ...)."""
  return seqio.Mixture(NAME, [(member(name), rate) for name, rate in rates])


def member(name: str) -> seqio.Task | str:
  """Returns a task in a scope of gin, or the name of a registered task or mixture.

  Raises:
    ValueError: there is no such task or mixture, or gin binds no files in the scope.
  """
  known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()} - {NAME}
  if name in known:
    return name
  task, _, scope = str(name).partition(".")
  if name == NAME:
    raise checks.Error(f"`{_PARAMETER}` names {name!r}, which is the mixture itself; "
                       "name its members.")
  if task not in _TASKS or not scope:
    raise checks.Error(
        f"`{_PARAMETER}` names {name!r}, which is not a task or mixture; name one that "
        "is registered, or one of your files as 'synth_text_pairs.SCOPE'."
        f"{checks.did_you_mean(task, known, near_only=True)}")
  if all(gin_files.bound(f"{scope}/{parameter}", _UNBOUND) is _UNBOUND
         for parameter in _FILES):
    raise checks.Error(
        f"`{_PARAMETER}` names {name!r}, but gin binds no files in the scope "
        f"{scope!r}; write, as for others of your files, "
        f"{scope}/synthesizer_mtf.tasks.pairs.train = '/data/{scope}.tsv'.")
  return seqio.TaskRegistry.get(task).scoped(scope)


seqio.MixtureRegistry.add_provider(NAME, OwnMixture())
