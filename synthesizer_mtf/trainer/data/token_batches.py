"""Rounds batches of tokens down to whole sequences.

T5's eval.gin asks for 32,768 tokens. Mesh TensorFlow requires a multiple of the longest
sequence. For a length of 40, 32,768 is not a multiple.
"""

from typing import Any

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals

_BATCH = "utils.run.batch_size"
_LENGTH = "utils.run.sequence_length"


@gin.config.register_finalize_hook
def round_down(config: gin_internals.Config) -> dict[str, Any] | None:
  """Rounds the tokens of a batch down to whole sequences, and logs it.

  Returns:
    the binding to change, or None.

  Raises:
    ValueError: not even one sequence fits, or no length is given.
  """
  del config
  batch = gin_files.bound(_BATCH, None)
  if not isinstance(batch, (list, tuple)) or not str(batch[0]).startswith("tokens_"):
    return None
  method, tokens = batch
  lengths = gin_files.bound(_LENGTH, None)
  length = max(lengths.values(), default=None) if isinstance(lengths, dict) else lengths
  if length is None:
    raise checks.Error(f"`{_BATCH}` is {batch!r}, but `{_LENGTH}` is {lengths!r}; bind "
                       f"one of them, as in --gin_param=\"{_BATCH} = 32\".")
  if not tokens % length:
    return None
  if tokens < length:
    raise checks.Error(f"`{_BATCH}` is {batch!r}, less than one sequence of {length}; "
                       "raise it, or bind it to a number of sequences.")
  whole = tokens // length
  logging.warning("`%s` is %r, rounded down to %d tokens: %d sequences of %d.",
                  _BATCH, batch, whole * length, whole, length)
  return {_BATCH: (method, whole * length)}
