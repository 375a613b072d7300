"""Questions: SQuAD 1.1, which is part of T5's `en_mix`, and WebQuestions.

WebQuestions (Berant et al. 2013) comes without a text that has the answer. As in
Roberts et al. (arXiv:2002.08910), the model has to know the answer ("closed book"). The
last tenth of the training split is for validation. The target in training is the first
answer of a question. In evaluation any of its answers is right.
"""

import seqio
from synthesizer_mtf.tasks import text_to_text
from synthesizer_mtf.tasks import tfds_source
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf


@seqio.map_over_dataset
def _question_and_answer(row):
  return {"inputs": tf.strings.join(["web question: ", row["question"]]),
          "targets": row["answers"][0], "answers": row["answers"]}


# T5's `squad_v010_allanswers`: the best score over all answers counts.
text_to_text.add(
    "synth_squad", "squad/v1.1:3.0.0", preprocessors.squad,
    postprocess_fn=postprocessors.qa, metric_fns=[metrics.squad])

text_to_text.add(
    "synth_web_questions",
    tfds_source.PreparedDataSource("web_questions:1.0.0", splits={
        "train": "train[:90%]", "validation": "train[90%:]", "test": "test"}),
    _question_and_answer,
    postprocess_fn=postprocessors.qa, metric_fns=[metrics.trivia_qa])
