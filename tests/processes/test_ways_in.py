"""Each interface trains, evaluates and decodes with the attention that gin names.

test_launcher.py tests the command itself.
"""

import json
import os
import re

from absl import flags
import absl.logging
from absl.testing import flagsaver
import gin
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
import seqio
from support import launching
from support.mtf_models import attention
from support.mtf_models import FILES
from support.mtf_models import variables
from support.paths import ROOT
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import launcher
from synthesizer_mtf.attention import functions
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer.command import mtf_model
from synthesizer_mtf.trainer.command import precedence
from synthesizer_mtf.trainer.model import prediction
import t5.models
from t5.models import mesh_transformer
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

TASK = "synth_text_pairs"
LENGTHS = {"inputs": 16, "targets": 12}
CHOICE = "synthesizer_stack.attention = 'R+V'"
STOCK = ("SelfAttention", {"q", "k", "v", "o", "relative_attention_bias"})
R_V = ("SyntheticAttention", {
    "q", "k", "v", "o", "relative_attention_bias", "R", "alpha"})

@pytest.fixture(autouse=True)
def version_1():
  """Sets TensorFlow's version 1 behavior, as T5's command does."""
  tf.disable_v2_behavior()


class Folder(launching.Launcher):
  """A folder with data, and with tiny models of T5's `MtfModel`."""

  def parse(self, *bindings):
    gin_files.parse(FILES, [*self.bindings(), *bindings])

  def model(self, name, *bindings, **kwargs):
    """Makes an `MtfModel` in the subfolder `name`, with extra gin bindings."""
    return t5.models.MtfModel(
        model_dir=str(self.folder / name), tpu=None, batch_size=4,
        sequence_length=LENGTHS, iterations_per_loop=1,
        learning_rate_schedule=0.001, extra_gin_bindings=list(bindings), **kwargs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentencepiece_model):
  """Data, and a stock model after a step; the process made one with R+V before it."""
  resource = tf.resource_variables_enabled()
  tf.disable_resource_variables()
  folder = Folder(tmp_path_factory.mktemp("ways"), sentencepiece_model)
  folder.stock = folder.folder / "stock"
  folder.parse()
  folder.model("before", CHOICE).estimator(
      seqio.get_mixture_or_task(TASK).output_features["targets"].vocabulary)
  folder.model("stock").train(TASK, 1)
  gin.clear_config()
  yield folder
  if resource:
    tf.enable_resource_variables()


@pytest.fixture(scope="module")
def tuned(folder):
  """A model with R+V, fine-tuned by the model API of T5's command."""
  with flagsaver.flagsaver():
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()
    run_api(folder, "tuned", "finetune", CHOICE, train_steps=1,
            pretrained_model_dir=str(folder.stock))
  gin.clear_config()
  return folder.folder / "tuned"


def flags_of(folder, name, *bindings, files=FILES, **others):
  return {"model_dir": f"{folder.folder}/{name}", "gin_file": files,
          "gin_param": [*folder.bindings(), *bindings], **others}


def run_api(folder, name, mode, *bindings, **others):
  gin.clear_config()
  with flagsaver.flagsaver(**flags_of(
      folder, name, *bindings, mode=mode, use_model_api=True, batch_size=4,
      input_sequence_length=16, target_sequence_length=12, mixture_or_task=TASK,
      **others)):
    launcher.main([])


def test_a_stock_model_stays_stock_whatever_the_last_model_was(folder):
  assert attention(folder.stock) == STOCK
  config = (folder.stock / "operative_config.gin").read_text()
  assert "synthesizer_stack" not in config


@pytest.mark.usefixtures("clean_tasks")
def test_a_folder_of_python_names_its_task_lengths_and_device(folder):
  gin_files.parse([folder.stock / "operative_config.gin"])
  for one in mesh_transformer.get_vocabulary():
    assert one.sentencepiece_model_file == folder.vocabulary
  run = gin.get_bindings("utils.run")
  assert run["sequence_length"] == LENGTHS and run["batch_size"] == 4
  assert run["mesh_devices"] == ["cpu:0"] and run["learning_rate_schedule"] == 0.001
  assert run["optimizer"] is optimize.AdafactorOptimizer
  assert gin_files.bound("mesh_train_dataset_fn.mixture_or_task_name", None) == TASK


def test_lengths_that_nobody_passes_are_those_of_the_folder(folder, monkeypatch):
  seen = []
  monkeypatch.setattr(utils, "get_estimator", lambda **kwargs: seen.append(kwargs))
  monkeypatch.setattr(utils, "score_from_strings", lambda **kwargs: None)
  model = t5.models.MtfModel(model_dir=folder.stock, tpu=None, batch_size=4)
  with pytest.raises(AttributeError):  # The estimator is None.
    model.score(["a"], ["b"])
  assert seen[0]["sequence_length"] == LENGTHS


def test_finetune_has_the_attention_and_starts_from_the_checkpoint(folder, tuned):
  for part in ("encoder", "decoder"):
    assert attention(tuned, part) == R_V
  old, new = variables(folder.stock), variables(tuned, 1)
  assert new["global_step"] == 1
  assert variables(tuned)["global_step"] == 2
  for name, value in new.items():
    if not re.search(r"/(R|alpha)(_slot_\w+)?$", name):  # What T5 has not.
      np.testing.assert_array_equal(
          old[name.replace("SyntheticAttention", "SelfAttention")], value)


@pytest.fixture
def built(monkeypatch):
  """The models that are made and not trained."""
  models, build = [], stack.build_model

  def keep(*args, **kwargs):
    models.append(build(*args, **kwargs))
    return models[-1]

  monkeypatch.setattr(stack, "build_model", keep)
  monkeypatch.setattr(utils, "train_model", lambda *args, **kwargs: None)
  return models


@pytest.mark.parametrize("before, extra, argument, chosen", [
    (None, ["synthesizer_stack.attention = 'R'"], None, "R"), ("T", [], None, "T"),
    ("T", ["encoder/synthesizer_stack.attention = [", "'D']", CHOICE], "FR", "FR")])
def test_the_chosen_attention_wins_over_scopes_of_a_loaded_configuration(
    before, extra, argument, chosen, folder, tuned, built):
  folder.bind_data()
  if before:
    gin.bind_parameter("synthesizer_stack.attention", before)
  folder.model(f"asked_for_{chosen}", *extra, attention=argument).finetune(
      TASK, 1, str(tuned))
  for part in (built[-1].encoder, built[-1].decoder):
    synthesizer, = part.layer_stack.layers[0].mixture.synthesizers
    assert isinstance(synthesizer, functions.SYNTHESIZING_FUNCTIONS[chosen])


def test_a_model_does_not_take_the_bindings_of_the_last_model(folder):
  folder.parse()
  before = gin.config_str()
  with pytest.raises(ValueError, match="'Q' is not"):
    folder.model("wrong", "synthesizer_stack.attention = 'R+Q'", "num_layers = 3",
                 "encoder/RandomLogits.stddev = 0.5").train(TASK, 1)
  assert gin.config_str() == before


@pytest.mark.usefixtures("parsed_flags")
def test_arguments_are_the_attention_the_seed_and_the_warm_start(folder):
  """The stock command with this package as a module draws the same numbers."""
  folder.bind_data()
  folder.parse()
  folder.model("one", attention="R+V", seed=5, warm_start=str(folder.stock)).train(
      TASK, 1)
  assert not stack.choices()
  assert gin_files.bound("warm_start.checkpoint", None) is None
  assert attention(folder.folder / "one") == R_V
  check_q(folder, folder.folder / "one", 0)
  gin.clear_config()
  with flagsaver.flagsaver(**flags_of(
      folder, "module", CHOICE, launching.STEPS.format(1),
      "utils.run.train_model_fn = @train_with_seed", "train_with_seed.seed = 5",
      module_import=["synthesizer_mtf"])):
    mesh_transformer_main.main([])
  assert attention(folder.folder / "module") == R_V
  one, module = (variables(folder.folder / name, 0) for name in ("one", "module"))
  for name, value in one.items():
    if name.endswith("SyntheticAttention/R"):
      np.testing.assert_array_equal(module[name], value)


def check_q(folder, model_dir, step):
  key = "encoder/block_000/layer_000/{}/q"
  np.testing.assert_array_equal(
      variables(folder.stock)[key.format("SelfAttention")],
      variables(model_dir, step)[key.format("SyntheticAttention")])


def test_finetune_and_a_warm_start_from_elsewhere_contradict(folder):
  folder.bind_data()
  with pytest.raises(ValueError, match="leave out the first"):
    folder.model("both", CHOICE, "warm_start.checkpoint = 'other'").finetune(
        TASK, 1, str(folder.stock))


def test_a_training_goes_on_with_the_attention_of_the_folder(folder, tuned, built):
  folder.parse()
  folder.model("tuned").train(TASK, 3)
  for part in (built[-1].encoder, built[-1].decoder):
    assert len(part.layer_stack.layers[0].mixture.synthesizers) == 2
  gin.clear_config()
  with flagsaver.flagsaver(**flags_of(folder, "tuned")), pytest.raises(
      SystemExit, match="a model with the attention 'R.V', but none is bound; add --"):
    launcher.main([])


def test_a_validation_without_parameters_has_the_defaults(folder, built, monkeypatch):
  asked = []
  monkeypatch.setattr(mtf_model.validations, "bindings",
                      lambda task, chosen: asked.append((task, chosen)))
  folder.parse()
  for given in None, {}:
    folder.model("validated").train(TASK, 1, validation=given)
  assert asked == [(TASK, {})] and len(built) == 2


def test_a_checkpoint_that_mtf_model_does_not_read_is_an_error(folder):
  """It would train from scratch; the first binding is a macro that nothing reads."""
  line = "init_checkpoint = 'DIR'"
  folder.parse()
  with pytest.raises(checks.Error, match="bound in extra_gin_bindings, line 1, but no"):
    folder.model("new", line).train(TASK, 1)
  folder.parse(f"utils.run.{line}")
  with pytest.raises(checks.Error, match="run.init_checkpoint` is 'DIR', but MtfModel"):
    folder.model("new").train(TASK, 1)
  assert not (folder.folder / "new").exists()


def test_a_wrong_size_is_an_error(folder):
  folder.parse()
  with pytest.raises(ValueError, match="the gin macro `d_kv` is 0"):
    folder.model("wrong", CHOICE, "d_kv = 0").train(TASK, 1)


def test_a_step_that_does_not_exist_is_refused_by_every_method(folder, tmp_path):
  """The nearest one has other scores."""
  folder.parse()
  (tmp_path / "lines").write_text("a\n")
  path, said = str(tmp_path / "lines"), ".*123]? but '.*stock' holds the steps 0, 1; na"
  for argument, call in [
      ("checkpoint_steps", lambda m: m.eval(TASK, 123)),
      ("checkpoint_steps", lambda m: m.eval(TASK, [1, 123])),
      ("checkpoint_steps", lambda m: m.predict(path, f"{path}.out", 123)),
      ("checkpoint_steps", lambda m: m.predict(path, f"{path}.out", [0, 123])),
      ("checkpoint_steps", lambda m: m.score(["a"], ["b"], checkpoint_steps=123)),
      ("checkpoint_step", lambda m: m.export(str(tmp_path / "exported"), 123)),
      ("pretrained_checkpoint_step", lambda m: folder.model("tune").finetune(
          TASK, 1, folder.stock, 123))]:
    with pytest.raises(checks.Error, match=f"`{argument}` is {said}"):
      call(folder.model("stock"))
  assert os.listdir(tmp_path) == ["lines"]


def rounded(answers):
  """Answers with scores of three digits: sums depend on the size of the batch."""
  return [answer if isinstance(answer, str) else
          {**answer, "scores": [round(score, 3) for score in answer["scores"]]}
          for answer in answers]


def test_texts_are_answered_as_files_are_and_by_a_session_that_stays(
    folder, tmp_path, monkeypatch):
  folder.parse("synthesizer_decode_length.tokens = 5")
  built, graph = [], prediction.Graph.__init__
  monkeypatch.setattr(prediction.Graph, "__init__", lambda *args: (
      built.append(args), graph(*args))[1])
  texts = ["house", "", "spring house", "a", "b"]  # More than a batch of four.
  (tmp_path / "texts").write_text("\n".join(texts) + "\n")
  for bindings, read in ([], str), (["synthesizer_answers.number = 2"], json.loads):
    model = folder.model("stock", *bindings)
    beams = {"beam_size": 1 + len(bindings), "temperature": 0}
    path = model.predict(str(tmp_path / "texts"), str(tmp_path / "out"), **beams)
    lines = rounded(map(read, launching.decoded(tmp_path / path)))
    built.clear()
    assert rounded(model.predict(texts, **beams)) == lines
    assert len(built) == 1
    with monkeypatch.context() as patch:  # The graph and its variables stay.
      patch.setattr(tf.train.Saver, "restore", None)
      assert rounded(model.predict((texts[3], texts[0]), **beams)) == [
          lines[3], lines[0]]
      assert model.predict([], **beams) == []
    assert len(built) == 1
  both = model.predict(texts[:1], checkpoint_steps=[0, 1], **beams)
  assert set(both) == {0, 1} and rounded(both[1]) == lines[:1] and len(built) == 3
  model.batch_size = 2
  assert rounded(model.predict(texts, **beams)) == lines and len(built) == 4
  model.close()
  with pytest.raises(RuntimeError, match="closed Session"):
    built[-1][0].run([])
  assert rounded(model.predict(texts, **beams)) == lines and len(built) == 5


def test_sizes_of_model_files_give_way_to_the_folder_and_sizes_of_ones_own_are_refused(
    folder, tuned, built, monkeypatch):
  said = []
  monkeypatch.setattr(precedence.logging, "info",
                      lambda text, *args: said.append(text % args))
  gin_files.parse(FILES, folder.data_bindings())
  folder.model("sizes").finetune(TASK, 1, tuned)
  assert any("`d_ff` is 24, and not 512 as in models/laptop.gin" in text
             for text in said)
  gin_files.parse(FILES, [*folder.data_bindings(), "d_ff = 40"])
  with pytest.raises(checks.Error, match="`pretrained_model_dir` is .*`d_ff` is 40, bu"
                     "t 24 there; leave this out"):
    folder.model("sizes").finetune(TASK, 1, tuned)
  assert len(built) == 1


def test_a_model_that_does_not_fit_its_checkpoint_is_an_error(folder):
  folder.bind_data()
  with pytest.raises(ValueError, match="SyntheticAttention"):
    folder.model("stock", CHOICE).eval(TASK, checkpoint_steps=-1)


@pytest.mark.usefixtures("parsed_flags")
def test_the_model_api_of_the_command(folder, monkeypatch):
  said = []
  monkeypatch.setattr(mtf_model.logging, "warning",
                      lambda text, *args: said.append(text % args))
  run_api(folder, "api", "train", CHOICE, "utils.run.train_model_fn = @train_with_seed",
          "utils.run.keep_checkpoint_max = 3", train_steps=1)
  assert attention(folder.folder / "api") == R_V
  assert any("`utils.run.train_model_fn` is @" in text and
             "MtfModel does not use it" in text for text in said)
  assert ("`utils.run.keep_checkpoint_max` is 3, but MtfModel does not read it; pass "
          "keep_checkpoint_max.") in said
  run_api(folder, "api", "eval", CHOICE)
  lines, = (path.read_text() for path in (folder.folder / "api").glob(
      "**/*_predictions"))
  assert lines.count("\n") == 7  # T5 separates eight decodes; one can be empty.


@pytest.mark.usefixtures("clean_tasks")
def test_the_page_on_python(folder, monkeypatch, capfd):
  """Runs the code of docs/python.md with the test's paths and one step.

  It trains, evaluates, fine-tunes, predicts and exports; the last two without an
  argument for the attention.
  """
  text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
  code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
  code = code.replace("vocabulary.model", folder.vocabulary)
  code = re.sub(r"\b(200|100)\b", "1", code).replace("# tiny", "")
  monkeypatch.chdir(folder.folder)
  verbosity = absl.logging.get_verbosity()
  page = {}
  exec(compile(code, "docs/python.md", "exec"), page)
  absl.logging.set_verbosity(verbosity)
  assert attention(folder.folder / "tiny" / "r+v") == R_V
  assert attention(folder.folder / "tiny" / "d_from_r+v")[1] >= {"W1", "W2"}
  assert list((folder.folder / "tiny").glob("r+v/validation_eval/*_1_predictions"))
  assert [*page["history"].frame.index] == [1]
  assert page["other"].history.frame.index[-1] == 2  # The steps of both trainings.
  assert repr(page["ours"]).startswith(
      "MtfModel('tiny/r+v', attention='R+V', sequence_length={'inputs': 16, 'targets': "
      "12}, step=1, parameters=")
  assert launching.decoded(folder.folder / page["path"]) == page["answers"]
  exported = folder.folder / page["folder"]
  saved = [name for name, _ in tf.train.list_variables(
      f"{exported}/variables/variables")]
  assert "encoder/block_000/layer_000/SyntheticAttention/R" in saved
  np.testing.assert_allclose(page["weights"].sum(-1), 1, rtol=1e-5)
  printed = capfd.readouterr()
  assert printed.err.count("Training R+V, ") == 1
  assert f" on {TASK}, batches of 4, in tiny/r+v." in printed.err
  assert "step 1 of 1: loss " in printed.err and "tf_loss[" not in printed.err
  assert "deprecated" not in printed.err
  bleu = page["scores"][TASK]["bleu"]
  assert re.search(
      rf"task +data +metric +step 1\n{TASK} +validation of dev.tsv +bleu +{bleu:.4g}\n",
      printed.out)
