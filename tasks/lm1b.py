"""The One Billion Word benchmark, for decoder-only language models."""

import functools

import seqio
from synthesizer_mtf.tasks import cut_examples
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import tfds_source
from synthesizer_mtf.tasks import vocabulary
from t5.data import preprocessors

# Each sentence is an example, because the benchmark has shuffled its sentences. The
# splits are "train" and "test". No metric needs decoding. perplexity_eval.gin gives the
# perplexity per token, and word_perplexity_eval.gin gives it per token and per word.
task.add(
    "synth_lm1b",
    source=tfds_source.PreparedDataSource("lm1b:1.1.0"),
    preprocessors=[
        functools.partial(preprocessors.rekey, key_map={"targets": "text"}),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        cut_examples.report,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={
        "targets": seqio.Feature(vocabulary.TaskVocabulary(), add_eos=True)
    },
    metric_fns=[])
