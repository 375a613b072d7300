"""Summaries of CNN and Daily Mail articles (Table 3), and of the BBC's articles: XSum.

XSum (arXiv:1808.08745) is a column of Narang et al. 2021 (arXiv:2102.11972).
"""

import functools
from typing import Any

import numpy as np
from synthesizer_mtf.tasks import text_to_text
from t5.data import preprocessors
from t5.evaluation import metrics


def rouge(targets: list[str], predictions: list[str],
          **kwargs: Any) -> dict[str, float]:
  """Returns T5's ROUGE-1, 2, L and Lsum, computed with a fixed seed.

  T5 draws examples a thousand times, takes the mean of each sample, and returns the
  median of these means. It does not fix the seed, so two evaluations of the same
  predictions differed in the second digit.

  Args:
    targets: a list of texts.
    predictions: a list of as many texts.
    **kwargs: further arguments of `rouge_scorer.RougeScorer`.

  Returns:
    a dict from name to float, from 0 to 100.
  """
  state = np.random.get_state()
  np.random.seed(0)
  try:
    return metrics.rouge(
        targets, predictions,
        score_keys=("rouge1", "rouge2", "rougeL", "rougeLsum"), **kwargs)
  finally:
    np.random.set_state(state)


# T5's task reports rougeLsum, which compares line by line. Earlier papers report
# ROUGE-L of the whole summary. This task reports both.
text_to_text.add(
    "synth_cnn_dailymail",
    "cnn_dailymail:3.4.0",
    functools.partial(preprocessors.summarize, article_key="article",
                      summary_key="highlights"),
    metric_fns=[rouge])

text_to_text.add(
    "synth_xsum",
    "xsum:1.1.0",
    functools.partial(preprocessors.summarize, article_key="document",
                      summary_key="summary"),
    metric_fns=[rouge])
