"""A seqio task that checks the data that it reads."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import cache_record
from synthesizer_mtf.tasks import cut_examples
import tensorflow.compat.v2 as tf

# The steps of T5's supervised tasks after they have made texts. Texts that are too long
# are cut, and each ends in an end of sequence if its feature says so.
TOKENIZE = (
    seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(), cut_examples.report,
    seqio.preprocessors.append_eos_after_trim)

_CACHED_BUFFER = 10_000  # Examples; the files of a cache have been shuffled once.


def add(name: str, task_cls: type[seqio.Task] | None = None, **kwargs: Any) -> None:
  """Registers a `Task`; takes what `seqio.TaskRegistry.add` takes."""
  seqio.TaskRegistry.add(name, task_cls=task_cls or Task, **kwargs)


class Task(seqio.Task):
  """A `seqio.Task` that names a missing split and refuses a cache with other ids."""

  def __init__(self, name: str, *args: Any,
               preprocessors: Sequence[Callable[..., tf.data.Dataset]] = (),
               **kwargs: Any) -> None:
    """Makes a `seqio.Task`; passes its name to `cut_examples.report`."""
    super().__init__(name, *args, preprocessors=[
        functools.partial(cut_examples.report, task=name)
        if getattr(step, "func", step) is cut_examples.report else step
        for step in preprocessors], **kwargs)

  def scoped(self, scope: str) -> "Task":
    """Returns this task on the files that gin binds in a scope."""
    return type(self)(
        f"{self.name}.{scope}", source=self.source.scoped(scope),
        output_features=self.output_features, preprocessors=self.preprocessors,
        postprocess_fn=self.postprocessor,
        metric_fns=self._metric_fn_constructor_args,
        shuffle_buffer_size=self.shuffle_buffer_size)

  def check_split(self, split: str) -> None:
    """Raises a ValueError if the data set has no such split."""
    if split not in self.splits:
      getattr(self.source, "check_split", lambda split: None)(split)
      raise checks.Error(
          f"task {self.name!r} has no split {split!r}; bind "
          f"`{checks.called('utils.run.dataset_split')}` to one of those that it has, "
          f"which are {', '.join(map(repr, self.splits))}.")

  def get_dataset(
      self, sequence_length: Mapping[str, int] | None = None, split: str = "train",
      use_cached: bool = False, shuffle: bool = True,
      shuffle_buffer_size: int | None = None, seed: int | None = None,
      try_in_mem_cache: bool = True, **kwargs: Any,
  ) -> tf.data.Dataset:
    """Returns a dataset, as `seqio.Task.get_dataset` does.

    Raises:
      ValueError: there is no such split.
    """
    if not use_cached:
      self.check_split(split)
    source_shuffles = shuffle and self.source.performs_internal_shuffling
    dataset = super().get_dataset(
        sequence_length, split, use_cached, shuffle, shuffle_buffer_size, seed,
        # seqio keeps small data sets in memory, in the order of the first epoch.
        try_in_mem_cache=try_in_mem_cache and not source_shuffles, **kwargs)
    if use_cached and source_shuffles and self.shuffle_buffer_size is None:
      examples = self.get_cached_stats(split)["examples"]
      dataset = dataset.shuffle(min(examples, _CACHED_BUFFER), seed=seed)
    return dataset

  def _get_cached_source(self, split: str, *args: Any, **kwargs: Any):
    self.assert_cached()
    cache_record.check(self, split)
    return super()._get_cached_source(split, *args, **kwargs)
