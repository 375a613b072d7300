"""The studies of `reproduce --study`: questions that two cores can answer.

A study is a table of our own. Its rows are models, which are trained on some tasks with
a few seeds. The study compares their scores. Sizes and data are in `gin/studies/`.
`README.md` describes the files that the gin files need.
"""

from studies import ability_heads
from studies import ability_lengths
from studies import ability_study
from studies import length_studies
from studies import lra
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments.study_types import Evaluation
from synthesizer_mtf.tools.experiments.study_types import Row
from synthesizer_mtf.tools.experiments.study_types import Score
from synthesizer_mtf.tools.experiments.study_types import Start
from synthesizer_mtf.tools.experiments.study_types import Study
from synthesizer_mtf.tools.experiments.study_types import Task

_FROM_V = ("warm_start/from_t5.gin",)
_EQUAL = {"Mixture.initial_weights": None}


def _accuracy(title, paper=""):
  """Returns an evaluation that decodes the classes of all pairs."""
  return Evaluation(
      (Score(title, "eval/synth_text_pairs/accuracy", paper=paper),),
      params={"utils.run.batch_size": 64,
              "Bitransformer.decode.max_decode_length": 4})


def _bleu(title, paper="", **others):
  return Evaluation(
      (Score(title, "eval/synth_text_pairs/bleu", paper=paper),),
      params={"utils.run.batch_size": 100,
              "Bitransformer.decode.max_decode_length": 64,
              **others.pop("params", {})}, **others)


def _log_perplexity(paper=""):
  """Returns an evaluation of 100 batches, more than the held-out text fills."""
  return Evaluation(
      (Score("log perplexity", "log_perplexity", True, 3, paper),),
      ("perplexity_eval.gin",),
      {"utils.run.perplexity_eval_steps": 100, "mesh_eval_dataset_fn.seed": 1})


_BOOLQ = Task("boolq", ("studies/boolq.gin",), (_accuracy("BoolQ, accuracy"),), 300,
              looks=1)
_ROTTEN_TOMATOES = Task(
    "rotten_tomatoes", ("studies/rotten_tomatoes.gin",),
    (_accuracy("Rotten Tomatoes, accuracy"),), 400)
_LIBREOFFICE = Task(
    "libreoffice", ("studies/libreoffice.gin",), (_bleu("En-De, BLEU"),), 600)


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
    start=Start("pretrained_v", ("studies/pretraining.gin", "attention/v.gin"),
          10000))

_PERPLEXITIES = Evaluation(
    (Score("perplexity per token", "eval/perplexity_per_token", True, 2),
     Score("per word", "eval/perplexity_per_word", True, 1, "Table 2, LM1B")),
    ("word_perplexity_eval.gin",),
    {"utils.run.batch_size": 64, "mesh_eval_dataset_fn.num_eval_examples": 2000})


def _plain(columns, names, change=lambda row: row):
  """Returns rows with the attentions of gin/attention.

  Args:
    columns: a dict from titles of scores to (number of a table, column) in the paper.
    names: the names of the rows, in the notation of the paper.
    change: a function from a `Row` to a changed `Row`.
  """
  for name in names.split():
    figures = {title: tables.figure(number, column, name)
               for title, (number, column) in columns.items()}
    yield change(Row(name, (f"attention/{name.lower()}.gin",), paper={
        title: figure for title, figure in figures.items() if figure is not None}))


_FLOOR = Row("uniform", ("attention/fix.gin",), {
    "FixedRandomLogits.stddev": 0.0,
    "SyntheticAttention.relative_attention_type": None})

_SPAN_CORRUPTION = Study(
    "span_corruption", "Span corruption (Table 4)",
    (Task("span_corruption", ("studies/span_corruption.gin",),
          (_log_perplexity("Table 4, C4"),), 1000, looks=3),),
    (*_plain({"log perplexity": (4, "Log PPL")},
             "V R D R+V D+V LightConv DyConv FR Fix FR+V FD T"), _FLOOR))

_LANGUAGE_MODELING = Study(
    "language_modeling", "Language modeling (Table 2, right)",
    (Task("language_modeling", ("studies/language_modeling.gin",), (_PERPLEXITIES,),
          500, looks=2),),
    (*_plain({"per word": (2, "LM1B PPL")}, "V Fix R FR D FD R+D D+V R+V"), _FLOOR))

_TRANSLATION = Study(
    "translation", "Translation (Table 2, left)",
    (Task("translation", ("studies/translation.gin",),
          (_bleu("BLEU, greedy"),
           _bleu("BLEU, beam 4", "Table 2, WMT14 En-De", suffix="beam_4",
                 every_look=False, params={
                     "Bitransformer.decode.beam_size": 4,
                     "Bitransformer.decode.alpha": 0.6})), 1500, looks=2),),
    (*_plain({"BLEU, beam 4": (2, "EnDe BLEU")}, "V Fix R FR D FD R+D D+V R+V"),
     _FLOOR))


def _from_span_corruption(row):
  return row._replace(gin_files=(*row.gin_files, *_FROM_V), params=_EQUAL,
                      is_warm=True)


_FINETUNING = Study(
    "finetuning", "Fine-tuning (Tables 5 and 6)",
    (_BOOLQ._replace(
        steps=150, evaluations=(_accuracy("BoolQ, accuracy", "Table 6, BoolQ"),)),
     _ROTTEN_TOMATOES._replace(
         steps=300, looks=3,
         evaluations=(_accuracy("Rotten Tomatoes, accuracy", "Table 5, SST-2"),))),
    tuple(_plain({"BoolQ, accuracy": (6, "BoolQ"),
                  "Rotten Tomatoes, accuracy": (5, "SST")}, "V D R D+V R+V",
                 _from_span_corruption)),
    start=_SPAN_CORRUPTION)


def _encoder(row):
  return row._replace(gin_files=(), params={
      "encoder/synthesizer_stack.attention": row.name})


_ENCODERS = Study(
    "encoders", "Encoders (Table 7)",
    (Task("encoder", ("studies/encoder.gin",), (Evaluation(
        (Score("accuracy", "eval/synth_text_pairs_encoder/accuracy",
               paper="Table 7, IMDb"),), params={"utils.run.batch_size": 128}),),
          300, looks=3),),
    (*_plain({"accuracy": (7, "Reviews")}, "V Linformer FR FR+V T LD", _encoder),
     Row("FNet", params={"encoder/synthesizer_stack.attention": "@FNet"})))


def _blocks(name, encoder, decoder):
  return Row(name, (), {"encoder/synthesizer_stack.attention": encoder,
                        "decoder/synthesizer_stack.attention": decoder})


_MIXED = ["R", "R", "V", "V"]
_BLOCKS = Study(
    "blocks", "Which blocks need V?",
    (Task("span_corruption", ("studies/blocks.gin",), (_log_perplexity(),), 1000,
          looks=3),),
    (_blocks("V", "V", "V"), _blocks("R", "R", "R"),
     _blocks("R then V", _MIXED, _MIXED),
     _blocks("V then R", _MIXED[::-1], _MIXED[::-1]),
     _blocks("R in the encoder", "R", "V"), _blocks("R in the decoder", "V", "R"),
     _FLOOR))


def _listops(name):
  paper = lra.ROWS[name].paper.get("ListOps")
  return Row(name, params={"encoder/synthesizer_stack.attention": name},
             paper={} if paper is None else {"accuracy": paper})


_LISTOPS = Study(
    "listops", "Short ListOps (Long Range Arena)",
    (Task("listops", ("studies/listops.gin",), (Evaluation(
        (Score("accuracy", "eval/synth_lra_listops/accuracy",
               paper="LRA, 500 to 2,000 words"),),
        params={"utils.run.batch_size": 100}),), 1000, looks=2),),
    tuple(map(_listops, lra.ROWS)), needs_data=False)

STUDIES = {study.name: study for study in (
    _WARM_START, _SPAN_CORRUPTION, _LANGUAGE_MODELING, _TRANSLATION, _FINETUNING,
    _ENCODERS, _BLOCKS, _LISTOPS, ability_study.STUDY, ability_heads.STUDY,
    ability_lengths.STUDY, length_studies.TILINGS, length_studies.GROWING)}
