"""What the files of scores need: one checkpoint, and the ids of the targets.

Mesh TensorFlow scores with one checkpoint, but its default is to wait for more. It
reads the ids of the targets after scoring: it finds padded examples by them,
counts their tokens and decodes them. But on CPUs and GPUs its graph has made text of
them before, if the vocabulary can do that in a graph.
"""

from collections.abc import Iterator
import contextlib
import contextvars
from typing import Any

import gin
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer import vocabularies

# The modes that score with one checkpoint.
MODES = ("score_from_strings", "score_from_dataset")

_RUN = "mesh_tensorflow.transformer.utils.run"
_EXPORTING = contextvars.ContextVar("_EXPORTING", default=False)


@gin.config.register_finalize_hook
def take_the_latest(config: gin_internals.Config) -> dict[str, Any] | None:
  """Scores with the latest checkpoint, unless gin names another."""
  run = config.get(("", _RUN), {})
  if run.get("mode") in MODES and run.get("eval_checkpoint_step") is None:
    return {f"{_RUN}.eval_checkpoint_step": -1}
  return None


@contextlib.contextmanager
def exporting() -> Iterator[None]:
  """Lets a graph make text of ids within a block; an exported model returns text."""
  token = _EXPORTING.set(True)
  try:
    yield
  finally:
    _EXPORTING.reset(token)


def keeping_ids(vocabulary: Any) -> Any:
  """Returns vocabularies that leave ids as they are, except in an exported model.

  Args:
    vocabulary: a vocabulary, or a tuple of those of the inputs and the targets.
  """
  return vocabularies.with_decode_tf(vocabulary, _of_exports)


def _of_exports(vocabulary):
  """`decode_tf`, which Mesh calls in a graph if it is there; only exports have it."""
  if not _EXPORTING.get():
    raise AttributeError("decode_tf")
  return vocabulary.decode_tf
