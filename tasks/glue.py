"""GLUE as text, word for word as T5's tasks have it.

T5 reads version 1.0.0 of the data sets, which TFDS no longer prepares. As in T5, WNLI
is a task but not part of the mixture. Neither is the diagnostic set `ax`, which has no
labels. `synth_glue_test` has all sets whose predictions GLUE's server expects,
including these two.
"""

import seqio
from synthesizer_mtf.tasks import hidden_labels
from synthesizer_mtf.tasks import text_to_text
from t5.data import glue_utils
import tensorflow_datasets as tfds

_VERSION = "2.0.0"

# Numbers of examples, for the tasks of T5's mixture; 0 for those that have no
# examples to train on.
WEIGHTS = {}

for _config in tfds.text.glue.Glue.builder_configs.values():
  _name = f"synth_glue_{_config.name}"
  text_to_text.add(
      _name,
      f"glue/{_config.name}:{_VERSION}",
      glue_utils.get_glue_text_preprocessor(_config),
      postprocess_fn=glue_utils.get_glue_postprocess_fn(_config),
      metric_fns=[*map(hidden_labels.unless_hidden,
                       glue_utils.get_glue_metric(_config.name))]
      or [hidden_labels.no_score])
  _theirs = f"glue_{_config.name}_v002"
  if _theirs in glue_utils.get_glue_weight_mapping() and _config.name != "ax":
    WEIGHTS[_name] = glue_utils.get_glue_weight_mapping()[_theirs]

seqio.MixtureRegistry.add("synth_glue", list(WEIGHTS.items()))

# This mixture is for evaluation, not for training.
seqio.MixtureRegistry.add(
    "synth_glue_test",
    [f"synth_glue_{name}" for name in tfds.text.glue.Glue.builder_configs
     if name != "mnli"],
    default_rate=1)
