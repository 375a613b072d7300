"""The same numbers, faster: attention, T5's other layers, losses, updates, decoding.

`attach` is the one place where this room takes the place of plain code: of the formulas
of `attention/`, and of Mesh TensorFlow's parts in the models that `t5/stack.py` builds.
The trainer adds what belongs to a session instead of a model: `adafactor.py` and
`mixed_precision.py`.
"""

from synthesizer_mtf.attention.inputs import kinds
from synthesizer_mtf.fast import cases
from synthesizer_mtf.fast import kernels
from synthesizer_mtf.fast import models
from synthesizer_mtf.t5 import stack


def attach() -> None:
  """Lets attention and models be computed by this room."""
  kinds.attach(cases.choose)
  kernels.attach()
  stack.attach(models.as_gin_says)
