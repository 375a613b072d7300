"""Beginners' mistakes: the command's own main ends each of them with one line.

A row has the flags that differ from a training that works, and a part of the line. Each
command ends before the first step. The rows of the tools are at the end.
test_wrong_configurations.py has the mistakes of layers and models.
"""

import os
import re
import tempfile

from absl.testing import flagsaver
import gin
import pytest
from support import checkpoint_files
from support import models
from synthesizer_mtf import launcher
from synthesizer_mtf.tasks import averages
from synthesizer_mtf.tasks import submission
from synthesizer_mtf.tools import average_checkpoints
from synthesizer_mtf.tools import benchmark
from synthesizer_mtf.tools import hugging_face
from synthesizer_mtf.tools import inspect_task
from synthesizer_mtf.tools import plan_pod
from synthesizer_mtf.tools import plot_attention
from synthesizer_mtf.tools import train_vocabulary
import tensorflow.compat.v1 as tf

FILES = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
         "learning_rate_schedules/constant_0_001.gin", "cpu.gin"]
TASKS = "synthesizer_mtf.tasks."
DECODE = "Bitransformer.decode."
OWN = "MIXTURE_NAME = 'synth_own_mixture'"

# Wrong values, and the parameters that cannot have them, of each place that checks
# some. The line names the parameter. test_value_checks.py has the borders of each.
VALUES = [
    (["'x'"], """num_layers utils.run.train_steps utils.run.output_eval_examples
        learning_rate_schedules.linear_warmup.steps_or_fraction train_with_seed.seed
        synthesizer_mtf.tasks.vocabulary.extra_ids"""),
    (["None"], "utils.run.sequence_length utils.run.batch_size"),
    (["3"], "utils.run.dataset_split utils.run.train_model_fn"),
    (["1.5"], "dropout_rate SelfAttention.dropout_rate sublayer_dropout.dropout_rate"),
    (["'evaluate'"], "utils.run.mode"), (["'tran'"], "utils.run.dataset_split"),
    (["'model:2'", "'batch:0'"], "utils.run.mesh_shape"),
    (["[]", "['cpu:0', 'cpu:0']", "['gpu:99']"], "utils.run.mesh_devices"),
    (["3", "'/nowhere/model.ckpt-1'", "'{folder}'", "'{folder}/trained'"],
     "utils.run.init_checkpoint"),
    (["'/nowhere'"], "warm_start.checkpoint"),
    (["3", "'/nowhere/x'", "'{folder}'", "'{folder}/empty'", "'{folder}/fifo'"],
     TASKS + "pairs.train " + TASKS + "vocabulary.sentencepiece_model"),
    (["[]", "[3]"], TASKS + "pairs.train"),
    (["'{folder}/pairs.tsv'"], TASKS + "vocabulary.sentencepiece_model"),
    (["['bleu', 'rogue']"], TASKS + "pairs.metrics"),
    (["-3"], TASKS + "vocabulary.extra_ids")]

# Wrong rates of synth_own_mixture.
RATES = {
    **{value: f"is {value} but must be a dict from names of tasks to numbers above 0"
       for value in ("None", "{}", "['synth_text_pairs']", "{'synth_text_pairs': 0}",
                     "{'synth_text_pairs': -1.0}", "{'synth_text_pairs': 'x'}")},
    "{'synth_own_mixture': 1.0}": "names 'synth_own_mixture', which is the mixture",
    "{'synth_text_pairs.a': 1.0}":
        "names 'synth_text_pairs.a', but gin binds no files in the scope 'a'",
    **{f"{{{name}: 1.0}}": f"names {name}, which is not a task or mixture; name one"
       for name in ("'synth_text_pair'", "'synth_text_pair.a'", "3")}}

# Mistakes that gin, seqio or Python finds: the bindings, and a part of the line.
# gin_files/test_gin_names.py has more.
SLIPS = [
    ("MIXTURE_NAME = synth_text_pairs", "write 'synth_text_pairs' or"),
    (TASKS + "pairs.train = /data/x.tsv", "write '/data/x.tsv' or"),
    ("utils.run.skip_seen_data = true", "write True or"),
    ("num_heads = = 3", "num_heads = = 3; write a number"),
    ("MIXTURE_NAME = 'synth_text_pairs", "quote"),
    ("synthesizer_stak.attention = 'R'", "Did you mean synthesizer_stack"),
    ("MIXTURE_NAME = 'synth_text_pair'", "Did you mean synth_text_pairs"),
    ("MIXTURE_NAME = 3", "`MIXTURE_NAME` is 3 but must be the name of a task"),
    ("synthesizer_stack.attention = 'R,V'", "with \"+\""),
    ("DotProductLogits.max_length = 4", "doesn't have a parameter named 'max_length'"),
    ("utils.run.train_steps = 1,000", "write each binding as PARAMETER = VALUE"),
    ("'utils.run.batch_size = 4'", "write each binding as PARAMETER = VALUE"),
    ("DenseReluDense.activation = 'rleu'", "Did you mean relu"),
]


def from_tsv(*bindings):
  """The flags of a training on TSV files, as in T5's README."""
  return {"gin_param": [
      "utils.run.train_dataset_fn = @t5.models.mesh_transformer.tsv_dataset_fn",
      *bindings]}


def decoding(*bindings):
  return {"model_dir": "{folder}/trained", "gin_file": ["infer.gin"], "gin_param": [
      "infer_checkpoint_step = 7", "input_filename = '{folder}/lines'",
      "output_filename = '{folder}/out'", *bindings]}


def scoring(inputs, targets):
  return {"model_dir": "{folder}/trained", "gin_file": ["score_from_file.gin"],
          "gin_param": [f"inputs_filename = '{inputs}'",
                        f"targets_filename = '{targets}'"]}


def evaluating(task, split, file="eval.gin"):
  return {"model_dir": "{folder}/trained", "gin_file": [file], "gin_param": [
      f"MIXTURE_NAME = '{task}'", f"utils.run.dataset_split = '{split}'"]}


def on_two_devices(dimension, *bindings):
  return {"gin_param": [f"utils.run.mesh_shape = '{dimension}:2'",
                        "utils.run.mesh_devices = ['cpu:0', 'cpu:0']", *bindings]}


# Other flags and modes.
FLAGS = [
    (on_two_devices("batch", "utils.run.batch_size = 3"),
     "`utils.run.batch_size` is 3 but `utils.run.layout_rules` splits batch over the 2 "
     "parts of the mesh dimension 'batch'; make it a multiple of 2"),
    (on_two_devices("model", "d_ff = 25"), "`d_ff` is 25 but `utils.run.layout_rules`"),
    ({"gin_param": ["utils.run.batch_size = 3",
                    "tpu_estimator_model_fn.outer_batch_size = 2"]},
     "outer_batch_size` is 2, which does not divide `utils.run.batch_size`, 3"),
    ({"gin_param": [
        "utils.run.train_model_fn = @train_with_seed",
        "train_with_seed.train_model_fn = @train_with_attention_summaries",
        "train_with_attention_summaries.train_model_fn = @train_with_seed"]},
     "`train_model_fn` is @train_with_seed, which trains by itself again, without"),
    (decoding(f"{DECODE}beam_size = 4", f"{DECODE}temperature = 0.5"),
     f"`{DECODE}temperature` is 0.5 but `{DECODE}beam_size` is 4, and beam search has"),
    ({"gin_param": [
        "utils.run.init_checkpoint = '{folder}/whole/model.ckpt-7'"]},
     "whose steps count; raise it above 7"),
    (evaluating("synth_text_pairs", "test"), "pairs.test` or the environment variable"),
    (evaluating("synth_lm1b", "validation", "perplexity_eval.gin"), "'synth_lm1b', "
     "which has no such split; bind it to one of 'test', 'train'"),
    (evaluating("synth_super_glue", "dev"), "`utils.run.dataset_split` is 'dev', but"),
    ({"gin_param": ["utils.run.mode = 'export_infer'"]},
     "no checkpoint, but `utils.run.mode` is 'export_infer'; name"),
    ({"gin_param": ["MIXTURE_NAME = 'synth_ag_news_encoder'"]},
     "not a classifier; add --gin_file=classifier.gin"),
    (decoding("input_filename = '/nowhere/x'"), "there is no such file; name"),
    (decoding("input_filename = '{folder}/blank'"), "holds no text; give"),
    (decoding("input_filename = '{folder}/latin1'"), "whose line 2 is not UTF-8"),
    (decoding("input_filename = '{folder}/nul'"), "whose line 2 has a NUL character"),
    (decoding("input_filename = '{folder}'"), "which is a folder; name a file"),
    (decoding("input_filename = '{folder}/fifo'"), "which is not a regular file"),
    (decoding("output_filename = '/nowhere/x/y'"), "there is no folder '/nowhere/x'"),
    (decoding("output_filename = None"), "`output_filename` is None but"),
    (decoding("infer_checkpoint_step = 'last'"), "is 'last' but must be the step"),
    (decoding("decode_from_file.repeats = 0"), "`decode_from_file.repeats` is 0 but"),
    (decoding(), "model.ckpt-7.index is damaged"),
    (from_tsv(), "`tsv_dataset_fn.filename` is None but must be the path"),
    (from_tsv("tsv_dataset_fn.filename = '/nowhere/*.tsv'"), "there is no such file"),
    (from_tsv("tsv_dataset_fn.filename = '{folder}'"), "there is no such file"),
    (from_tsv("tsv_dataset_fn.filename = ['{folder}/pairs.tsv', '{folder}/lines']"),
     "lines', whose line 1 has 1 columns, but a pair has 2"),
    (scoring("/nowhere/x", "{folder}/lines"), "`inputs_filename` is '/nowhere/x'"),
    (scoring("{folder}/lines", "/nowhere/x"), "`targets_filename` is '/nowhere/x'"),
    (scoring("{folder}/lines", "{folder}/pairs.tsv"),
     "has 3 texts, which is not a multiple of the"),
    ({"gin_file": ["/nowhere/x.gin"]}, "Unable to open file: /nowhere/x.gin"),
    ({"gin_file": ["attention/r+w.gin"]}, "Did you mean attention/r+v.gin"),
    ({"gin_file": ["{folder}"]}, "which is a folder; name a file in it"),
    ({"gin_file": ["{folder}/latin1"]}, "is not UTF-8; name a file of gin"),
    ({"gin_file": ["{folder}/fifo"]}, "which is not a regular file"),
    ({"gin_file": ["{folder}/pairs.tsv"]}, "pairs.tsv, line 1: Couldn't parse"),
    ({"gin_file": ["{folder}/include.gin"]}, "Unable to open file: nope.gin"),
    ({"module_import": ["no_module"]}, "No module named 'no_module'; correct"),
    ({"module_import": ["my/tasks.py"]}, "No module named 'my/tasks"),
    ({"module_import": ["mistaken"]}, "mistaken.py, line 2: Attempting to"),
    ({"gin_file": ["trained/operative_config.gin"]}, "a training writes it into the"),
    ({"model_dir": "{folder}/empty"}, "which is a file; name a folder"),
    ({"model_dir": "/proc/nowhere"}, "which cannot be made"),
    ({"model_dir": "{folder}/trained"}, "has been trained for 7 steps; raise it"),
    ({"gin_file": ["eval.gin"]}, "where there is no checkpoint"),
    ({"model_dir": "{folder}/trained", "gin_file": ["eval.gin"], "gin_param": [
        "MIXTURE_NAME = 'synth_text_lm'"]}, "'synth_text_lm', which has no metrics"),
    ({"gin_file": ["export.gin"]}, "export.gin, line 12 has %export_path, but nothing "
     "binds `export_path`; bind it"),
    ({"gin_file": ["export.gin"], "model_dir": "{folder}/trained",
      "gin_param": ["export_path = '{folder}/empty'"]}, "which is a file; name"),
    ({"gin_file": ["classifier.gin"]}, "are text; leave out classifier.gin"),
    ({"gin_param": ["mesh_train_dataset_fn.use_cached = True"]},
     "is no cache of 'synth_text_pairs', which `MIXTURE_NAME` names; bind it to False"),
]

TOOLS = [
    (inspect_task, "synth_text_pair", "Did you mean synth_text_pairs"),
    (inspect_task, "synth_text_pairs --gin_file=nope.gin", "Unable to open file"),
    (inspect_task, "synth_text_pairs --plot=x.docx", "let it end in .png"),
    (inspect_task, "synth_text_pairs --plot=/nowhere/x.png", "make it first"),
    (inspect_task, "synth_text_pairs --module_import=nope", "'nope'; correct --module"),
    (inspect_task, "synth_text_pairs --gin_param=x", "Couldn't parse"),
    (benchmark, "--png=x.docx", "let it end in .png"),
    (average_checkpoints, "/nowhere --output={folder}/average", "/nowhere"),
    (train_vocabulary, "--input=/nowhere --output={folder}/v", "no such file"),
    (train_vocabulary, "--input={folder}/fifo --output={folder}/v", "a regular file"),
    (train_vocabulary, "--input={folder}/empty --output={folder}/v", "holds no text"),
    (train_vocabulary, "--input={folder}/latin1 --output={folder}/v", "is not UTF-8"),
    (plot_attention, "", "give --model_dir=FOLDER"),
    (plot_attention, "--model_dir={folder} --output={folder}/p --module_import=nope",
     "No module named 'nope'; correct --module_import"),
    (plan_pod, "--gin_file=nope.gin", "nope.gin"),
    (plan_pod, "--json=/nowhere/x", "make it first"),
    (hugging_face, "export /nowhere --output={folder}/h", "holds no checkpoint"),
    (averages, "/nowhere", "has no event file"),
    (submission, "/nowhere --output={folder}/s", "has no predictions"),
]

ROWS = [
    *(({"gin_param": [OWN, f"{TASKS}mixture.rates = {value}"]},
       f"mixture.rates` {said}") for value, said in RATES.items()),
    *(({"gin_param": [slip]}, said) for slip, said in SLIPS),
    *FLAGS]


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("mistakes")
  for name, content in {
      "pairs.tsv": "one\teno\ntwo\towt\nten\tnet\n", "empty": "", "blank": "\n \n",
      "nul": "a\nb\0\n",
      "mistaken.py": "import seqio\nseqio.MixtureRegistry.add('synth_own_mixture', "
                     "['synth_text_pairs'], default_rate=1)\n",
      "lines": "one\ntwo\n", "include.gin": "include 'nope.gin'\n"}.items():
    (folder / name).write_text(content)
  (folder / "latin1").write_bytes("one\nMünchen\n".encode("latin1"))
  os.mkfifo(folder / "fifo")
  for name in ("trained", "whole"):
    (folder / name).mkdir()
  checkpoint_files.save(folder / "whole", 7)
  for suffix in ("index", "data-00000-of-00001"):
    (folder / "trained" / f"model.ckpt-7.{suffix}").write_text("")
  return str(folder)


@pytest.fixture(name="filled")
def fixture_filled(folder, monkeypatch, tmp_path):
  """Fills the folder into a row; files with tracebacks go to a temporary folder."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.syspath_prepend(folder)

  def fill(value):
    if isinstance(value, list):
      return [fill(part) for part in value]
    return value.replace("{folder}", folder)
  return fill


def check(line, said):
  """Checks that a command says `said` in one line, without a traceback."""
  assert re.match(r"[a-z_]+: ", line) and "\n" not in line
  assert "Traceback" not in line and "Error:" not in line
  assert said in line, line


@pytest.fixture(name="said_to")
def fixture_said_to(filled, folder, sentencepiece_model, parsed_flags, tfds_data_dir):
  """What the command says to a change of flags that work."""
  working = models.TINY + [
      "MIXTURE_NAME = 'synth_text_pairs'", "utils.run.batch_size = 4",
      f"{TASKS}vocabulary.sentencepiece_model = '{sentencepiece_model}'",
      f"{TASKS}pairs.train = '{folder}/pairs.tsv'", "utils.run.train_steps = 3",
      "utils.run.sequence_length = {'inputs': 16, 'targets': 12}"]

  def run(change):
    gin.clear_config()
    flags = {"model_dir": f"{folder}/new",
             **{name: filled(value) for name, value in change.items()}}
    flags["gin_file"] = FILES + flags.get("gin_file", [])
    flags["gin_param"] = working + flags.get("gin_param", [])
    with flagsaver.flagsaver(**flags), tf.Graph().as_default(), pytest.raises(
        SystemExit) as end:
      launcher.main([])
    return end.value.code
  return run


def shares(rows, count):
  """Parametrizes a test by shares of the rows, one item each."""
  return pytest.mark.parametrize("rows", [rows[i::count] for i in range(count)])


@shares(ROWS, 6)
def test_a_mistake_ends_the_command_in_one_line(rows, said_to):
  for change, said in rows:
    check(said_to(change), said)


@shares([(p, value) for values, named in VALUES for p in named.split()
         for value in values], 6)
def test_a_wrong_value_ends_the_command_in_one_line_with_a_remedy(rows, said_to):
  for parameter, value in rows:
    line = said_to({"gin_param": [f"{parameter} = {value}"]})
    check(line, parameter.rpartition(".")[2])
    assert re.search(r"; \w+", line), line
    assert "its traceback" not in line


@shares(TOOLS, 3)
def test_a_mistake_ends_a_tool_in_one_line(rows, filled):
  for tool, words, said in rows:
    with pytest.raises(SystemExit) as end:
      tool.main(filled(words).split())
    check(end.value.code, said)
