"""The synthesizing functions, one module each.

`names.py` is their registry. For users' own functions, this package exports most of
them, their base class, and two forms of logits.
"""

from synthesizer_mtf.ops.logit_forms import InnerProduct
from synthesizer_mtf.ops.logit_forms import Table
from synthesizer_mtf.synthesizers.base import SynthesizingFunction
from synthesizer_mtf.synthesizers.dense import DenseLogits
from synthesizer_mtf.synthesizers.dense import FactorizedDenseLogits
from synthesizer_mtf.synthesizers.dot_product import DotProductLogits
from synthesizer_mtf.synthesizers.factorized_random import FactorizedRandomLogits
from synthesizer_mtf.synthesizers.fixed_patterns import FixedPatterns
from synthesizer_mtf.synthesizers.mixture import Mixture
from synthesizer_mtf.synthesizers.names import part_name
from synthesizer_mtf.synthesizers.names import SYNTHESIZING_FUNCTIONS
from synthesizer_mtf.synthesizers.random_logits import FixedRandomLogits
from synthesizer_mtf.synthesizers.random_logits import RandomLogits
