"""The synthesizing functions of the paper, by their names in the notation.

A new function of this package needs an import and a line in the dict. A user's own
module calls `synthesizer_mtf.register`.
"""

from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.functions import dense
from synthesizer_mtf.attention.functions import dot_product
from synthesizer_mtf.attention.functions import factorized_random
from synthesizer_mtf.attention.functions import fixed_patterns
from synthesizer_mtf.attention.functions import local_dense
from synthesizer_mtf.attention.functions import random_logits
from synthesizer_mtf.attention.functions import toeplitz

SYNTHESIZING_FUNCTIONS: dict[str, type[base.SynthesizingFunction]] = {
    "V": dot_product.DotProductLogits,
    "R": random_logits.RandomLogits,
    "Fix": random_logits.FixedRandomLogits,
    "FR": factorized_random.FactorizedRandomLogits,
    "T": toeplitz.ToeplitzLogits,
    "D": dense.DenseLogits,
    "FD": dense.FactorizedDenseLogits,
    "LD": local_dense.LocalDenseLogits,
    "Pattern": fixed_patterns.FixedPatterns,
}


def part_name(synthesizer: base.SynthesizingFunction) -> str:
  """The name of a synthesizing function in the notation, or else its class's name."""
  cls = type(synthesizer)
  return next((name for name, known in SYNTHESIZING_FUNCTIONS.items()
               if known is cls), cls.__name__)
