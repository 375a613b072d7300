"""SQuAD 1.1, which is part of T5's `en_mix`."""

from synthesizer_mtf.tasks import text_to_text
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics

# T5's `squad_v010_allanswers`: the best score over all answers counts.
text_to_text.add(
    "synth_squad",
    "squad/v1.1:3.0.0",
    preprocessors.squad,
    postprocess_fn=postprocessors.qa,
    metric_fns=[metrics.squad])
