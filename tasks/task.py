"""seqio's task, with checks of what it reads."""

from typing import Any

import seqio
from synthesizer_mtf.tasks import cache_record


def add(name: str, **kwargs: Any) -> None:
  """Registers a `Task`; takes what `seqio.TaskRegistry.add` takes."""
  seqio.TaskRegistry.add(name, task_cls=Task, **kwargs)


class Task(seqio.Task):
  """A `seqio.Task` that refuses a cache made with something else."""

  def _get_cached_source(self, split: str, *args: Any, **kwargs: Any):
    self.assert_cached()
    cache_record.check(self, split)
    return super()._get_cached_source(split, *args, **kwargs)
