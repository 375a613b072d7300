"""Language modeling: pre-training on C4, and the One Billion Word benchmark."""

import functools

import seqio
from synthesizer_mtf.tasks import span_corruption
from synthesizer_mtf.tasks import text_to_text
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

text_to_text.add("synth_c4_span_corruption", "c4/en:3.1.0",
                 preprocessors=SPAN_CORRUPTION, metric_fns=[])

# For decoder-only models. Each sentence is an example, because the benchmark has
# shuffled its sentences. The splits are "train" and "test". No metric needs decoding.
# perplexity_eval.gin gives the perplexity per token, and word_perplexity_eval.gin gives
# it per token and per word.
text_to_text.add(
    "synth_lm1b", "lm1b:1.1.0",
    functools.partial(preprocessors.rekey, key_map={"targets": "text"}),
    output_features={
        "targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=True)},
    metric_fns=[])
