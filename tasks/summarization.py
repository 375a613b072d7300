"""Summaries of CNN and Daily Mail articles (Table 3)."""

import functools

from synthesizer_mtf.tasks import text_to_text
from t5.data import preprocessors
from t5.evaluation import metrics

# T5's task reports rougeLsum, which compares line by line; the papers before it
# report ROUGE-L of the whole summary. Both are here.
text_to_text.add(
    "synth_cnn_dailymail",
    "cnn_dailymail:3.4.0",
    functools.partial(preprocessors.summarize, article_key="article",
                      summary_key="highlights"),
    metric_fns=[functools.partial(
        metrics.rouge,
        score_keys=("rouge1", "rouge2", "rougeL", "rougeLsum"))])
