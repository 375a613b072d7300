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
  """The binding that rounds the tokens of a batch down to whole sequences, or None.

  Raises:
    ValueError: not even one sequence fits, or no length is given.
  """
  del config
  batch = gin_files.bound(_BATCH, None)
  whole = rounded_down(batch, gin_files.bound(_LENGTH, None))
  return None if whole is batch else {_BATCH: whole}


def counts_tokens(batch: Any) -> bool:
  """Whether a batch size, as of `utils.run`, is a number of tokens."""
  return isinstance(batch, (list, tuple)) and str(batch[0]).startswith("tokens_")


def rounded_down(batch: Any, lengths: Any) -> Any:
  """Returns a batch size with its tokens rounded down to whole sequences.

  The arguments are `utils.run.batch_size` and `utils.run.sequence_length`. A batch that
  holds whole sequences, or counts sequences, is returned itself.

  Raises:
    ValueError: not even one sequence fits, or no length is given.
  """
  if not counts_tokens(batch):
    return batch
  parameter, (method, tokens) = checks.called(_BATCH), batch
  length = max(lengths.values(), default=None) if isinstance(lengths, dict) else lengths
  if length is None:
    raise checks.Error(f"`{parameter}` is {batch!r}, but `{checks.called(_LENGTH)}` is "
                       f"{lengths!r}; bind one of them, as in "
                       f"--gin_param=\"{_BATCH} = 32\".")
  if tokens < length:
    raise checks.Error(f"`{parameter}` is {batch!r}, less than one sequence of "
                       f"{length}; raise it, or bind it to a number of sequences.")
  whole = tokens // length
  if whole * length == tokens:
    return batch
  logging.warning("`%s` is %r, rounded down to %d tokens: %d sequences of %d.",
                  parameter, batch, whole * length, whole, length)
  return method, whole * length
