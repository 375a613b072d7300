"""The one switch of all that this room computes."""

import gin
from synthesizer_mtf import checks


@gin.configurable("synthesizer_fast", module="synthesizer_mtf")
def is_enabled(enabled: bool = True) -> bool:
  """Whether fast code may take the place of Mesh TensorFlow's.

  Args:
    enabled: False leaves attention to the plain formula of `attention/attend.py`, and
      everything else to Mesh TensorFlow, whatever the other switches are.

  Raises:
    ValueError: enabled is not a boolean.
  """
  checks.check_boolean("synthesizer_fast.enabled", enabled)
  return enabled
