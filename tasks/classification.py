"""The two classification sets of Table 7, as text, for any T5 model.

Both have the splits "train" and "test". IMDb also has "unsupervised", whose rows have
no label.
"""

import functools

from synthesizer_mtf.tasks import text_to_text
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics


def _add(name, tfds_name, feature_names, labels):
  """Registers a task with texts in the style of T5's GLUE; its metric is accuracy."""
  text_to_text.add(
      f"synth_{name}",
      tfds_name,
      functools.partial(
          preprocessors.glue, benchmark_name=name, label_names=labels,
          feature_names=feature_names, id_key=None),
      postprocess_fn=functools.partial(
          postprocessors.string_label_to_class_id, label_classes=labels),
      metric_fns=[metrics.accuracy])


_add("ag_news", "ag_news_subset:1.0.0", ("title", "description"),
     ["World", "Sports", "Business", "Sci/Tech"])
_add("imdb_reviews", "imdb_reviews/plain_text:1.0.0", ("text",),
     ["negative", "positive"])
