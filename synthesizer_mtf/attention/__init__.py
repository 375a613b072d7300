"""What the paper says: attention with synthesized logits, in Mesh TensorFlow.

For users' own functions, this package exports most of the synthesizing functions, their
base class, and two forms of logits.
"""

from synthesizer_mtf.attention.functions import part_name
from synthesizer_mtf.attention.functions import SYNTHESIZING_FUNCTIONS
from synthesizer_mtf.attention.functions.base import SynthesizingFunction
from synthesizer_mtf.attention.functions.dense import DenseLogits
from synthesizer_mtf.attention.functions.dense import FactorizedDenseLogits
from synthesizer_mtf.attention.functions.dot_product import DotProductLogits
from synthesizer_mtf.attention.functions.factorized_random import FactorizedRandomLogits
from synthesizer_mtf.attention.functions.fixed_patterns import FixedPatterns
from synthesizer_mtf.attention.functions.local_dense import LocalDenseLogits
from synthesizer_mtf.attention.functions.random_logits import FixedRandomLogits
from synthesizer_mtf.attention.functions.random_logits import RandomLogits
from synthesizer_mtf.attention.logit_forms import InnerProduct
from synthesizer_mtf.attention.logit_forms import Table
from synthesizer_mtf.attention.mixture import Mixture
