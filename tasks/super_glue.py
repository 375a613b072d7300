"""SuperGLUE as text, word for word as T5's tasks have it."""

import seqio
from synthesizer_mtf.tasks import vocabulary
from t5.data import glue_utils
import tensorflow_datasets as tfds

_BOOLQ = tfds.text.super_glue.SuperGlue.builder_configs["boolq"]

seqio.TaskRegistry.add(
    "synth_super_glue_boolq",
    source=seqio.TfdsDataSource(tfds_name="super_glue/boolq:1.0.2"),
    preprocessors=[
        glue_utils.get_glue_text_preprocessor(_BOOLQ),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
    ],
    postprocess_fn=glue_utils.get_glue_postprocess_fn(_BOOLQ),
    metric_fns=glue_utils.get_super_glue_metric("boolq"),
    output_features=vocabulary.features())
