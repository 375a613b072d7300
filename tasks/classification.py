"""Text classification: the sets of the paper's Table 7, and SST-2.

AG News and IMDb have the splits "train" and "test" and no validation split, so set
`utils.run.dataset_split` to "test". IMDb also has "unsupervised", whose rows have no
label.

For both there is a task for any T5 model, with texts in the style of T5's GLUE. In the
tasks for `EncoderClassifier` the target is one class, and texts have no prefix. Texts
longer than `utils.run.sequence_length` are cut.
"""

from collections.abc import Sequence
import functools

import seqio
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import text_to_text
from synthesizer_mtf.tasks import vocabulary
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf
import tensorflow_datasets as tfds

# The target in T5's tasks for the label -1, which stands for a hidden label.
_UNKNOWN = "<unk>"


def _add(name, tfds_name, feature_names, classes):
  """Registers a task with texts in the style of T5's GLUE; its metric is accuracy."""
  text_to_text.add(
      f"synth_{name}", tfds_name,
      functools.partial(
          preprocessors.glue, benchmark_name=name, label_names=classes,
          feature_names=feature_names, id_key=None),
      postprocess_fn=functools.partial(
          postprocessors.string_label_to_class_id, label_classes=classes),
      metric_fns=[metrics.accuracy])


@seqio.map_over_dataset
def _text_and_class(row, texts, classes):
  """{"inputs": the texts with spaces between, "targets": the class's name}."""
  label = tf.cast(row["label"], tf.int32)
  return {
      "inputs": tf.strings.join([row[key] for key in texts], separator=" "),
      "targets": tf.gather((_UNKNOWN, *classes), label + 1),
  }


def add_encoder(name: str, tfds_name: str, texts: Sequence[str], classes: Sequence[str],
                inputs: seqio.Feature) -> None:
  """Registers a task on the features `texts`, whose labels 0, 1, ... are `classes`."""
  labels.add(
      name, tfds_name,
      functools.partial(_text_and_class, texts=texts, classes=classes),
      classes=classes, inputs=inputs)


_AG_NEWS = "ag_news_subset:1.0.0"
IMDB = "imdb_reviews/plain_text:1.0.0"
_TOPICS = ["World", "Sports", "Business", "Sci/Tech"]

_add("ag_news", _AG_NEWS, ("title", "description"), _TOPICS)
_add("imdb_reviews", IMDB, ("text",), ["negative", "positive"])

_PIECES = vocabulary.features()["inputs"]

add_encoder("synth_ag_news_encoder", _AG_NEWS, ["title", "description"], _TOPICS,
            _PIECES)
add_encoder("synth_imdb_reviews_encoder", IMDB, ["text"], ["neg", "pos"], _PIECES)
add_encoder("synth_glue_sst2_encoder", "glue/sst2:2.0.0", ["sentence"],
            tfds.text.glue.Glue.builder_configs["sst2"].label_classes, _PIECES)
