"""SuperGLUE as text, word for word as T5's tasks have it.

WSC is T5's simplified version: the model writes the noun that a pronoun stands for. It
trains on the rows whose noun is the right one, and on the Definite Pronoun Resolution
data set. `synth_super_glue_test` has all sets whose predictions SuperGLUE's server
expects, the diagnostic sets `axb` and `axg` included.
"""

from typing import Any

import seqio
from synthesizer_mtf.tasks import hidden_labels
from synthesizer_mtf.tasks import text_to_text
from synthesizer_mtf.tasks import tfds_source
from t5.data import glue_utils
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf
import tensorflow_datasets as tfds

_VERSION = "1.0.2"


class RightReferents(tfds_source.PreparedDataSource):
  """WSC without the training rows whose noun is not what the pronoun means.

  T5 has two tasks for this, one to train on and one to evaluate.
  """

  def get_dataset(
      self, split: str = "train", *args: Any, **kwargs: Any,
  ) -> tf.data.Dataset:
    dataset = super().get_dataset(split, *args, **kwargs)
    if split != "train":
      return dataset
    return dataset.filter(lambda row: row["label"] == 1)


# Numbers of examples to train on, as T5 has them, for the tasks of the mixture.
_T5_WEIGHTS = glue_utils.get_super_glue_weight_mapping()
WEIGHTS = {
    "synth_dpr": _T5_WEIGHTS["dpr_v001_simple"],
    "synth_super_glue_wsc": _T5_WEIGHTS["super_glue_wsc_v102_simple_train"],
}

text_to_text.add(
    "synth_dpr",
    "definite_pronoun_resolution:1.1.0",
    preprocessors.definite_pronoun_resolution_simple,
    metric_fns=[metrics.accuracy])

text_to_text.add(
    "synth_super_glue_wsc",
    RightReferents(f"super_glue/wsc.fixed:{_VERSION}"),
    preprocessors.wsc_simple,
    postprocess_fn=postprocessors.wsc_simple,
    metric_fns=[hidden_labels.unless_hidden(metrics.accuracy)])

for _name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "axb", "axg"):
  _config = tfds.text.super_glue.SuperGlue.builder_configs[_name]
  text_to_text.add(
      f"synth_super_glue_{_name}",
      f"super_glue/{_name}:{_VERSION}",
      glue_utils.get_glue_text_preprocessor(_config),
      postprocess_fn=glue_utils.get_glue_postprocess_fn(_config),
      metric_fns=[*map(hidden_labels.unless_hidden,
                       glue_utils.get_super_glue_metric(_name))]
      or [hidden_labels.no_score])
  if _name not in ("axb", "axg"):
    WEIGHTS[f"synth_super_glue_{_name}"] = _T5_WEIGHTS[f"super_glue_{_name}_v102"]

seqio.MixtureRegistry.add("synth_super_glue", list(WEIGHTS.items()))

# This mixture is for evaluation, not for training.
seqio.MixtureRegistry.add(
    "synth_super_glue_test",
    [name for name in WEIGHTS if name != "synth_dpr"]
    + ["synth_super_glue_axb", "synth_super_glue_axg"],
    default_rate=1)
