"""Mixtures of several benchmarks, for the co-training of Tables 5 and 6."""

import seqio
from synthesizer_mtf.tasks import glue
from synthesizer_mtf.tasks import language_modeling  # noqa: F401 (registers tasks)
from synthesizer_mtf.tasks import questions  # noqa: F401 (registers tasks)
from synthesizer_mtf.tasks import super_glue
import t5.data


def _weight(name, weight):
  """Halves the weight of RTE, which is in both benchmarks, as T5's mixtures do."""
  return weight / 2 if name.endswith("_rte") else weight


# Every task of both benchmarks, in proportion to its number of examples.
seqio.MixtureRegistry.add(
    "synth_glue_super_glue",
    [(name, _weight(name, weight))
     for name, weight in {**glue.WEIGHTS, **super_glue.WEIGHTS}.items()])

# T5's `en_mix`, which the paper names for Tables 5 and 6. As in T5, gin binds the
# rates: `rate_unsupervised.value` is C4's rate, a million, and `rate_num_examples`
# computes the rates of the other tasks. RTE counts twice, as it does in T5's mixture.
seqio.MixtureRegistry.add(
    "synth_en_mix",
    [("synth_c4_span_corruption", t5.data.rate_unsupervised),
     *glue.WEIGHTS, *super_glue.WEIGHTS, "synth_squad"],
    default_rate=t5.data.rate_num_examples)
