"""The studies of `reproduce --study`: questions that two cores can answer.

A study is a table of our own: rows are models, each trained on some tasks with a few
seeds, and what is compared is how well they do. Its sizes and data are in
`gin/studies/`; the files that the gin files ask for are in `docs/results/README.md`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from synthesizer_mtf.tools.reproduction import tables


class Score(NamedTuple):
  """What a task is judged by.

  Attributes:
    title: of the column.
    name: as `runs.results.scores` has it.
    lower_is_better: of the score.
    digits: after the point, where it is printed.
  """
  title: str
  name: str
  lower_is_better: bool = False
  digits: int = 1


class Task(NamedTuple):
  """What a row is trained on.

  Attributes:
    name: of its folder.
    gin_file: the model, the data and the training.
    score: what counts.
    steps: of the training.
    evaluation: gin files that come after those of the training.
    eval_params: gin bindings of the evaluation.
    looks: at how many places of the training the validation is looked at.
  """
  name: str
  gin_file: str
  score: Score
  steps: int
  evaluation: tuple[str, ...] = ("eval.gin",)
  eval_params: Mapping[str, object] = {}
  looks: int = 4


class Row(NamedTuple):
  """One model.

  Attributes:
    name: in the table.
    gin_files: after those of the task.
    params: gin bindings.
    is_warm: whether it starts from the model that the study trains first.
    annealing: from and to which share of the training the weights of a mixture
      move; None where they don't.
    paper: the figures of arXiv:2005.00743, by the titles of scores.
  """
  name: str
  gin_files: tuple[str, ...]
  params: Mapping[str, object] = {}
  is_warm: bool = False
  annealing: tuple[float, float] | None = None
  paper: Mapping[str, float] = {}


class Start(NamedTuple):
  """The model that warm rows start from, trained once with the seed 1.

  Attributes:
    name: of its folder.
    gin_files: of its training.
    steps: of its training.
  """
  name: str
  gin_files: tuple[str, ...]
  steps: int


class Study(NamedTuple):
  """One study.

  Attributes:
    name: for `--study`, and of its page in docs/results.
    title: of its page.
    tasks: what each row is trained on, each by itself.
    rows: the models; the first is what the others are compared with.
    start: where warm rows start from, or None.
  """
  name: str
  title: str
  tasks: tuple[Task, ...]
  rows: tuple[Row, ...]
  start: Start | None = None


_ALL_CLASSES = {"utils.run.batch_size": 64,
                "Bitransformer.decode.max_decode_length": 4}
_ACCURACY = "eval/synth_text_pairs/accuracy"
_BOOLQ = Task("boolq", "studies/boolq.gin", Score("BoolQ, accuracy", _ACCURACY),
              300, eval_params=_ALL_CLASSES, looks=1)
_ROTTEN_TOMATOES = Task(
    "rotten_tomatoes", "studies/rotten_tomatoes.gin",
    Score("Rotten Tomatoes, accuracy", _ACCURACY), 400, eval_params=_ALL_CLASSES)
_LIBREOFFICE = Task(
    "libreoffice", "studies/libreoffice.gin",
    Score("En-De, BLEU", "eval/synth_text_pairs/bleu"), 600,
    eval_params={"utils.run.batch_size": 100,
                 "Bitransformer.decode.max_decode_length": 64})

_FROM_V = ("warm_start/from_t5.gin",)
_EQUAL = {"Mixture.initial_weights": None}


def _warm(name, notation, params, annealing=None):
  return Row(name, (f"attention/{notation}.gin", *_FROM_V), params, True, annealing)


_WARM_START = Study(
    "warm_start", "Warm starts, judged by quality",
    (_BOOLQ, _ROTTEN_TOMATOES, _LIBREOFFICE),
    (_warm("V", "v", _EQUAL),
     _warm("R+V at 0.999", "r+v", {}),
     _warm("R+V equal", "r+v", _EQUAL),
     _warm("V to R", "r+v", {"Mixture.final_weights": {"R": 1.0}},
           (0.1, 0.6)),
     Row("R from scratch", ("attention/r.gin",), {
         "SyntheticAttention.relative_attention_type": "bias_shared"})),
    Start("pretrained_v", ("studies/pretraining.gin", "attention/v.gin"),
          10000))

_LOG_PERPLEXITY = Score("log perplexity", "log_perplexity", True, 3)
# 100 batches are more than the text held out fills.
_PERPLEXITY_PARAMS = {"utils.run.perplexity_eval_steps": 100,
                      "mesh_eval_dataset_fn.seed": 1}


def _corruption(gin_file, steps):
  return Task("span_corruption", gin_file, _LOG_PERPLEXITY, steps,
              ("perplexity_eval.gin",), _PERPLEXITY_PARAMS)


def _plain(name, params=None):
  """A row of an attention of gin/attention, with what Table 4 says of it."""
  paper = {row.name: row.paper["Log PPL"][0] for row in tables.TABLES[4].rows}
  return Row(name, (f"attention/{name.lower()}.gin",), params or {}, paper={
      _LOG_PERPLEXITY.title: paper[name]} if name in paper else {})


# What is left of an attention that sees all tokens alike.
_FLOOR = Row("all alike", ("attention/fix.gin",), {
    "FixedRandomLogits.stddev": 0.0,
    "SyntheticAttention.relative_attention_type": None})

_SPAN_CORRUPTION = Study(
    "span_corruption", "Span corruption (Table 4)",
    (_corruption("studies/span_corruption.gin", 6000),),
    (*map(_plain, ("V", "R", "D", "R+V", "D+V", "LightConv", "DyConv", "FR", "Fix",
                   "FR+V", "FD", "T")), _FLOOR))


def _blocks(name, encoder, decoder):
  return Row(name, (), {"encoder/synthesizer_stack.attention": encoder,
                        "decoder/synthesizer_stack.attention": decoder})


_MIXED = ["R", "R", "V", "V"]
_BLOCKS = Study(
    "blocks", "Which blocks need V?", (_corruption("studies/blocks.gin", 6000),),
    (_blocks("V", "V", "V"), _blocks("R", "R", "R"),
     _blocks("R then V", _MIXED, _MIXED),
     _blocks("V then R", _MIXED[::-1], _MIXED[::-1]),
     _blocks("R in the encoder", "R", "V"), _blocks("R in the decoder", "V", "R")))

STUDIES = {study.name: study
           for study in (_WARM_START, _SPAN_CORRUPTION, _BLOCKS)}
