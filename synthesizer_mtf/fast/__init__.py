"""The same numbers, faster: attention, T5's other layers, losses, updates, decoding."""

from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.fast import attend
from synthesizer_mtf.fast import cases


def attach() -> None:
  """Lets attention compute with the kernels of this room."""
  attention_inputs.attach(cases.choose)
  attend.attach()
