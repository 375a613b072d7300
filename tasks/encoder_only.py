"""Text classification for `EncoderClassifier`: the target is one class.

AG News and IMDb are the data sets of the paper's Table 7. They have no validation
split, so set `utils.run.dataset_split` to "test". Texts have no prefix. Texts longer
than `utils.run.sequence_length` are cut.
"""

from collections.abc import Sequence
import functools

import seqio
from synthesizer_mtf.tasks import cut_examples
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import tfds_source
from synthesizer_mtf.tasks import vocabulary
from t5.data import postprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf
import tensorflow_datasets as tfds

# The target in T5's tasks if a test set hides its labels, which are then -1.
_UNKNOWN = "<unk>"


@seqio.map_over_dataset
def _text_and_class(row, texts, classes):
  """{"inputs": the texts with spaces between, "targets": the class's name}."""
  label = tf.cast(row["label"], tf.int32)
  return {
      "inputs": tf.strings.join([row[key] for key in texts], separator=" "),
      "targets": tf.gather((_UNKNOWN, *classes), label + 1),
  }


def add(name: str, tfds_name: str, texts: Sequence[str], classes: Sequence[str],
        inputs: seqio.Feature) -> None:
  """Registers a task.

  Args:
    name: a string.
    tfds_name: a data set with the integer feature "label".
    texts: the names of the features to read, in this order.
    classes: the names of the labels 0, 1, ...
    inputs: the feature for the inputs.
  """
  task.add(
      name,
      source=tfds_source.PreparedDataSource(tfds_name),
      preprocessors=[
          functools.partial(_text_and_class, texts=texts, classes=classes),
          seqio.preprocessors.tokenize,
          seqio.CacheDatasetPlaceholder(),
          cut_examples.report,
          seqio.preprocessors.append_eos_after_trim,
      ],
      postprocess_fn=functools.partial(
          postprocessors.string_label_to_class_id, label_classes=classes),
      metric_fns=[metrics.accuracy],
      output_features={
          "inputs": inputs,
          "targets": seqio.Feature(
              labels.LabelVocabulary(classes), add_eos=False),
      })


_PIECES = vocabulary.features()["inputs"]

add("synth_ag_news_encoder", "ag_news_subset:1.0.0",
    texts=["title", "description"],
    classes=["World", "Sports", "Business", "Sci/Tech"], inputs=_PIECES)

add("synth_imdb_reviews_encoder", "imdb_reviews/plain_text:1.0.0",
    texts=["text"], classes=["neg", "pos"], inputs=_PIECES)

add("synth_glue_sst2_encoder", "glue/sst2:2.0.0", texts=["sentence"],
    classes=tfds.text.glue.Glue.builder_configs["sst2"].label_classes,
    inputs=_PIECES)
