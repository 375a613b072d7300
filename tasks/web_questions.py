"""WebQuestions without a text that has the answer (Berant et al. 2013).

As in Roberts et al. (arXiv:2002.08910), the model has to know the answer ("closed
book"). The last tenth of the training split is for validation. The target in training
is the first answer of a question. In evaluation any of its answers is right.
"""

import functools

import seqio
from synthesizer_mtf.tasks import text_to_text
from synthesizer_mtf.tasks import tfds_source
from t5.data import postprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf


@seqio.map_over_dataset
def _question_and_answer(row):
  return {"inputs": tf.strings.join(["web question: ", row["question"]]),
          "targets": row["answers"][0], "answers": row["answers"]}


text_to_text.add(
    "synth_web_questions", "web_questions:1.0.0", _question_and_answer,
    postprocess_fn=postprocessors.qa, metric_fns=[metrics.trivia_qa],
    source_cls=functools.partial(tfds_source.PreparedDataSource, splits={
        "train": "train[:90%]", "validation": "train[90%:]", "test": "test"}))
