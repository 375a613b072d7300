"""Pre-training on C4, as T5 does it."""

import functools

import seqio
from synthesizer_mtf.tasks import span_corruption
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import tfds_source
from synthesizer_mtf.tasks import vocabulary
from t5.data import preprocessors

# T5's `c4_v220_span_corruption`: 15% noise in spans of 3 tokens on average. TFDS no
# longer prepares version 2.2.0 of the data set, which T5 reads.
SPAN_CORRUPTION = [
    functools.partial(
        preprocessors.rekey, key_map={"inputs": None, "targets": "text"}),
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    span_corruption.span_corruption,
    seqio.preprocessors.append_eos_after_trim,
]

task.add(
    "synth_c4_span_corruption",
    source=tfds_source.PreparedDataSource("c4/en:3.1.0"),
    preprocessors=SPAN_CORRUPTION,
    output_features=vocabulary.features(),
    metric_fns=[])
