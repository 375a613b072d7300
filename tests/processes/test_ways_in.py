"""Each interface trains, evaluates and decodes with the attention that gin names.

test_launcher.py tests the command itself.
"""

import re
import subprocess
import sys

from absl.testing import flagsaver
import gin
import numpy as np
import pytest
import seqio
from support import mtf_models
from support.launching import STEPS
from support.mtf_models import attention
from support.mtf_models import TASK
from support.mtf_models import variables
from support.paths import ROOT
from synthesizer_mtf import gin_files
from synthesizer_mtf import launcher
from synthesizer_mtf import stack
from synthesizer_mtf.training import mtf_model
from t5.models import mesh_transformer
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

CHOICE = "synthesizer_stack.attention = 'R+V'"
# The configuration of a stock model does not bind this for our layers.
BIAS = "SyntheticAttention.relative_attention_type = 'bias_shared'"
STOCK = ("SelfAttention", {"q", "k", "v", "o", "relative_attention_bias"})
R_V = ("SyntheticAttention", {
    "q", "k", "v", "o", "relative_attention_bias", "R", "alpha"})

IMPORTS = """
try:
  import mesh_tensorflow
except (AttributeError, ImportError) as error:
  assert "register_tensor" in str(error) or "estimator" in str(error), error
import synthesizer_mtf
import mesh_tensorflow
import t5.models
assert t5.models.MtfModel is synthesizer_mtf.MtfModel
"""


@pytest.fixture(autouse=True)
def version_1():
  """Sets TensorFlow's version 1 behavior, as T5's command does."""
  tf.disable_v2_behavior()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentencepiece_model):
  """Data, and a stock model that was trained for a step."""
  resource = tf.resource_variables_enabled()
  tf.disable_resource_variables()
  yield mtf_models.Folder(tmp_path_factory.mktemp("ways"), sentencepiece_model)
  if resource:
    tf.enable_resource_variables()


@pytest.fixture(scope="module")
def tuned(folder):
  """A model with R+V, fine-tuned from the stock model as in T5's notebook."""
  tf.disable_resource_variables()
  gin.clear_config()
  folder.data()
  folder.model("tuned", CHOICE, BIAS).finetune(TASK, 1, str(folder.stock))
  gin.clear_config()
  return folder.folder / "tuned"


def test_a_stock_model_stays_stock(folder):
  assert attention(folder.stock) == STOCK
  config = (folder.stock / "operative_config.gin").read_text()
  assert "synthesizer_stack" not in config


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


def test_eval_predict_and_export_need_no_binding_for_the_attention(folder, tuned):
  folder.data()
  model = folder.model("tuned")
  model.eval(TASK, checkpoint_steps=-1)
  # T5 separates the decodes by new lines; a decode can be empty.
  lines = (tuned / "validation_eval" / f"{TASK}_2_predictions").read_text()
  assert len(lines.split("\n")) == 8
  source = folder.folder / "words.txt"
  source.write_text("\n".join(folder.words[:3]) + "\n")
  output = folder.folder / "predicted"
  vocabulary = mesh_transformer.get_vocabulary(TASK)
  model.predict(str(source), str(output), temperature=0, vocabulary=vocabulary)
  assert len(mtf_models.predictions(output)) == 3
  exported = model.export(
      str(folder.folder / "exported"), temperature=0, vocabulary=vocabulary)
  if isinstance(exported, bytes):
    exported = exported.decode()
  names = [name for name, _ in tf.train.list_variables(
      f"{exported}/variables/variables")]
  assert "encoder/block_000/layer_000/SyntheticAttention/R" in names


@pytest.mark.parametrize("before, extra, argument, has, lacks", [
    (None, ["synthesizer_stack.attention = 'R'"], None, "R", "alpha"),
    ("T", [], None, "T", "R"),
    ("T", ["encoder/synthesizer_stack.attention = [", "'D']", CHOICE],
     "FR", "R1", "R")])
def test_the_chosen_attention_wins_over_scopes_of_a_loaded_configuration(
    before, extra, argument, has, lacks, folder, tuned):
  folder.data()
  if before:
    gin.bind_parameter("synthesizer_stack.attention", before)
  name = f"asked_for_{has}"
  folder.model(name, *extra, attention=argument).finetune(TASK, 1, str(tuned))
  for part in ("encoder", "decoder"):
    _, found = attention(folder.folder / name, part)
    assert has in found and lacks not in found


def test_a_model_does_not_take_the_attention_of_the_last_model(folder):
  folder.parse()
  folder.model("mixed", CHOICE).estimator(seqio.get_mixture_or_task(
      TASK).output_features["targets"].vocabulary)
  folder.model("plain").finetune(TASK, 1, str(folder.stock))
  assert attention(folder.folder / "plain") == STOCK


def test_a_model_does_not_take_the_bindings_of_the_last_model(folder):
  folder.parse()
  before = gin.config_str()
  with pytest.raises(ValueError, match="'Q' is not"):
    folder.model("wrong", "synthesizer_stack.attention = 'R+Q'", "num_layers = 3",
                 "encoder/RandomLogits.stddev = 0.5").train(TASK, 1)
  assert gin.config_str() == before


def test_an_argument_names_the_attention_the_seed_and_the_warm_start(folder):
  folder.data()
  found = []
  for name in ("one", "again"):
    folder.parse()
    folder.model(name, attention="R+V", seed=5, warm_start=str(folder.stock)).train(
        TASK, 1)
    assert not stack.choices()
    assert gin_files.bound("warm_start.checkpoint", None) is None
    assert attention(folder.folder / name) == R_V
    check_q(folder, folder.folder / name, 0)
    found.append(variables(folder.folder / name, 0))
  for name, value in found[0].items():
    np.testing.assert_array_equal(found[1][name], value)


def check_q(folder, model_dir, step):
  key = "encoder/block_000/layer_000/{}/q"
  np.testing.assert_array_equal(
      variables(folder.stock)[key.format("SelfAttention")],
      variables(model_dir, step)[key.format("SyntheticAttention")])


def test_finetune_and_a_warm_start_from_elsewhere_contradict(folder):
  folder.data()
  with pytest.raises(ValueError, match="leave out the first"):
    folder.model("both", CHOICE, "warm_start.checkpoint = 'other'").finetune(
        TASK, 1, str(folder.stock))


def test_a_wrong_size_and_a_wrong_notation_are_errors(folder):
  folder.parse()
  with pytest.raises(ValueError, match="the gin macro `d_kv` is 0"):
    folder.model("wrong", CHOICE, "d_kv = 0").train(TASK, 1)
  folder.parse()
  with pytest.raises(ValueError, match="`synthesizer_stack.attention` names 'Q'"):
    folder.model("wrong", "synthesizer_stack.attention = 'Q'").train(TASK, 1)


def test_a_model_that_does_not_fit_its_checkpoint_is_an_error(folder):
  folder.data()
  with pytest.raises(ValueError, match="SyntheticAttention"):
    folder.model("stock", CHOICE).eval(TASK, checkpoint_steps=-1)


def test_settings_that_only_the_command_has_are_named(folder, monkeypatch):
  folder.parse("utils.run.train_model_fn = @train_with_seed")
  said = []
  monkeypatch.setattr(mtf_model.logging, "warning",
                      lambda text, *args: said.append(text % args))
  folder.model("seeded", CHOICE).train(TASK, 1)
  assert any("`utils.run.train_model_fn` is @" in text and
             "MtfModel does not use it" in text for text in said)


def flags_of(folder, name, *bindings, files=mtf_models.FILES, **others):
  return {"model_dir": f"{folder.folder}/{name}", "gin_file": files,
          "gin_param": [*folder.bindings(), *bindings], **others}


@pytest.mark.usefixtures("parsed_flags")
def test_the_stock_command_with_the_module(folder):
  with flagsaver.flagsaver(**flags_of(
      folder, "module", CHOICE, STEPS.format(1),
      module_import=["synthesizer_mtf"])):
    mesh_transformer_main.main([])
  assert attention(folder.folder / "module") == R_V


API = {"use_model_api": True, "batch_size": 4, "input_sequence_length": 16,
       "target_sequence_length": 12, "mixture_or_task": TASK}


def run_api(folder, name, mode, *bindings, **others):
  gin.clear_config()
  with flagsaver.flagsaver(**flags_of(
      folder, name, *bindings, **{"mode": mode, **API, **others})):
    launcher.main([])


@pytest.mark.usefixtures("parsed_flags")
def test_the_command_with_the_model_api(folder):
  run_api(folder, "api", "train", CHOICE, train_steps=1)
  assert attention(folder.folder / "api") == R_V
  run_api(folder, "api", "eval", CHOICE)
  assert list((folder.folder / "api").glob("**/*_predictions"))
  run_api(folder, "api_tuned", "finetune", CHOICE, train_steps=1,
          pretrained_model_dir=str(folder.stock))
  assert attention(folder.folder / "api_tuned") == R_V
  check_q(folder, folder.folder / "api_tuned", 1)


@pytest.mark.usefixtures("clean_tasks")
def test_the_page_on_python(folder, monkeypatch):
  """Runs the code of docs/python.md with the test's paths and one step."""
  text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
  code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
  code = code.replace("vocabulary.model", folder.vocabulary)
  code = re.sub(r"\b(200|100)\b", "1", code).replace("# tiny", "")
  monkeypatch.chdir(folder.folder)
  exec(compile(code, "docs/python.md", "exec"), {})
  assert attention(folder.folder / "trained" / "r+v") == R_V
  assert attention(folder.folder / "trained" / "d_from_r+v")[1] >= {"W1", "W2"}


def test_after_a_failed_import_our_package_makes_mesh_tensorflow_importable(tmp_path):
  subprocess.run([sys.executable, "-c", IMPORTS], cwd=tmp_path, check=True)
