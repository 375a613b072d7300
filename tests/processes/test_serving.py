"""Exported models, loaded by TensorFlow alone, decode as the trainer does."""

import http.client
import json
import subprocess
import sys

from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
import seqio
from support import cases
from support import clients
from support import documents
from support import models
from support import ports
from support.launching import decoded
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools.base import checkpoint_writer
import tensorflow.compat.v1 as tf

STEP = 3

# Several variants share a model, one block each, so that few graphs are built.
NAMES = [*cases.NOTATIONS, *notation.LAYERS]
GROUPS = [NAMES[i::3] for i in range(3)]
DECODER = {"Linformer": "V"}  # Linformer is for encoders only.

TINY = sum(map(cases.bindings, cases.VARIANTS), []) + [
    "Linformer.max_length = 12", "Linformer.rank = 2", "SparseFixed.stride = 3",
    "SparseFixed.columns = 1", "SparseStrided.stride = 3", "num_layers = 1",
    "d_model = 8", "d_ff = 12", "num_heads = 3", "d_kv = 5",
    "dropout_rate = 0.0", "Unitransformer.max_length = 16",
    "Unitransformer.shared_embedding_and_softmax_weights = False",
    "Bitransformer.decode.max_decode_length = 6",
    "utils.run.batch_size = 2", f"infer_checkpoint_step = {STEP}"] + [
        f"utils.get_variable_dtype.{name}_dtype = 'float32'"
        for name in ("master", "slice", "activation")]

# Reads a folder and strings from each line, and writes what its model returns. Before a
# script, it is the script's arguments.
SERVER = """
import json, sys, threading
import tensorflow as tf
import tensorflow_text
for line in sys.stdin:
  folder, *strings = json.loads(line)
  if folder.endswith(".py"):
    sys.argv = [folder, *strings]
    code = open(folder).read()
    threading.Thread(target=exec, args=(code, {}), daemon=True).start()
    continue
  decode = tf.saved_model.load(folder).signatures["serving_default"]
  try:
    tensors = decode(inputs=tf.constant(strings, tf.string)).items()
    answer = {k: v.numpy().tolist() for k, v in tensors}
  except tf.errors.InvalidArgumentError as error:
    answer = str(error)
  trainers = {"mesh_tensorflow", "seqio", "synthesizer_mtf", "t5"}
  print(json.dumps([answer, sorted(trainers & set(sys.modules))],
                   default=bytes.decode), flush=True)
"""


class Served:
  """Runs strings through SavedModels in a process without the trainers' packages."""

  def __init__(self, folder):
    self._process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, cwd=folder)
    self.end = self._process.communicate

  def __call__(self, saved, strings):
    answer, modules_of_trainers = json.loads(self.ask(saved, *strings))
    assert not modules_of_trainers
    return answer

  def ask(self, *words):
    self._process.stdin.write(json.dumps(words) + "\n")
    self._process.stdin.flush()
    return self._process.stdout.readline()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
  served = Served(tmp_path_factory.mktemp("server"))
  yield served
  served.end()


@pytest.fixture(autouse=True)
def tensorflow_as_the_launcher_has_it():
  """Selects v1 variables and control flow; fixtures.py restores both."""
  tf.disable_resource_variables()
  tf.disable_control_flow_v2()


class Trainer:
  """Runs T5's trainer on a tiny model with random variables."""

  def __init__(self, folder, vocabulary):
    self.folder = folder
    self._paths = [
        f"input_filename = '{folder}/inputs'",
        f"output_filename = '{folder}/outputs'",
        f"export_path = '{folder}/exported'",
        "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
        f"'{vocabulary}'"]

  def make(self, *bindings, files=(), task="synth_text_pairs", targets=4,
           model_type="bitransformer"):
    """Parses gin's bindings and writes a checkpoint."""
    models.parse_gin(["dataset.gin", "infer.gin", *files, "export.gin"], [
        *TINY, *self._paths, f"MIXTURE_NAME = '{task}'",
        f"utils.run.model_type = '{model_type}'",
        f"utils.run.sequence_length = {{'inputs': 8, 'targets': {targets}}}",
        *bindings])
    features = seqio.get_mixture_or_task(task).output_features
    sizes = [features[name].vocabulary.vocab_size
             for name in ("inputs", "targets") if name in features]
    m = models.Model(model_type, sizes[0], targets_vocabulary=sizes[-1])
    with m.tf_graph.as_default():
      ids = m.ids(np.ones((1, 1), int))
      m.model.call_simple(ids, ids, False)
    generator = np.random.RandomState(0)
    checkpoint_writer.write(str(self.folder), f"model.ckpt-{STEP}", [
        ("global_step", np.int64(STEP)),
        *((v.name, np.float32(2 * generator.randn(*v.shape.to_integer_list)))
          for v in m.graph.all_variables)])
    return self

  def _run(self, **mode):
    utils.run(tpu_job_name=None, tpu=None, gcp_project=None, tpu_zone=None,
              model_dir=str(self.folder), **mode)

  def infer(self, texts):
    """The trainer's decodes of texts."""
    (self.folder / "inputs").write_text("\n".join(texts) + "\n")
    self._run(mode="infer")
    return decoded(self.folder / f"outputs-{STEP}")

  def export(self):
    """The folder of the SavedModel."""
    self._run()
    saved, = (self.folder / "exported").iterdir()
    return str(saved)


@pytest.fixture
def trainer(tmp_path, sentencepiece_model):
  return Trainer(tmp_path, sentencepiece_model)


def attentions(names):
  """Bindings of a block with an attention for each name."""
  layers = ", ".join(["@transformer_layers.SelfAttention"] * len(names))
  return [f"encoder/transformer.make_layer_stack.layers = [{layers}]",
          "decoder/transformer.make_layer_stack.layers = "
          f"[@transformer_layers.EncDecAttention, {layers}]",
          f"encoder/synthesizer_stack.attention = {names}",
          "decoder/synthesizer_stack.attention = "
          f"{[DECODER.get(name, name) for name in names]}"]


def check(trainer, served, texts=("the statement", "a list of names")):
  """Compares the exported model with the trainer; returns the decodes."""
  expected = trainer.infer(texts)
  assert served(trainer.export(), texts) == {
      "inputs": list(texts), "outputs": expected}
  assert len(set(expected)) == len(texts)
  return expected


@pytest.mark.parametrize("names", GROUPS, ids=",".join)
def test_exported_variants_decode_as_the_trainer(names, trainer, served):
  check(trainer.make(*attentions(names)), served)


def test_an_exported_mixer_decodes_as_the_trainer(trainer, served):
  check(trainer.make(*attentions(["R"]), files=["attention/mixer.gin"]), served)


def test_a_language_model_continues_its_inputs_as_the_trainer(trainer, served):
  check(trainer.make("synthesizer_stack.attention = 'R+V'",
                     task="synth_text_lm", model_type="lm"), served)


def test_a_classifier_gives_the_names_of_the_classes(trainer, served):
  trainer.make(*attentions(["FR+D+V"]), files=["classifier.gin"], targets=1,
               task="synth_ag_news_encoder")
  answers = check(trainer, served, ["the statement", "so good"])
  assert set(answers) <= {"World", "Sports", "Business", "Sci/Tech"}


@pytest.mark.parametrize("of_model", [
    {"files": ["classifier.gin"], "targets": 1, "task": "synth_ag_news_encoder"},
    {"files": ["beam_search.gin"]}], ids=["classes", "beams"])
def test_an_exported_model_and_mode_infer_give_the_same_answers(
    of_model, trainer, served):
  trainer.make(*attentions(["FR+V"]), "synthesizer_answers.number = 3", **of_model)
  texts = ["the statement", "so good"]
  lines = [*map(json.loads, trainer.infer(texts))]
  answers = served(trainer.export(), texts)
  assert answers.keys() == lines[0].keys() == {"inputs", "outputs", "scores", "lengths"}
  np.testing.assert_allclose(
      answers.pop("scores"), [line.pop("scores") for line in lines], atol=1e-4)
  assert answers == {name: [line[name] for line in lines] for name in answers}
  assert np.shape(answers["outputs"]) == (2, 3)


def test_beam_search_answers_or_refuses_requests_of_any_size(trainer, served):
  trainer.make(*attentions(["D+V"]), "Bitransformer.decode.beam_size = 3")
  saved = trainer.export()
  texts = ["", "a list of names and of all the other statements"]
  both = served(saved, texts)
  assert both["outputs"] == trainer.infer(texts)
  assert len(set(both["outputs"])) == 2
  assert served(saved, texts[1:]) == {k: v[1:] for k, v in both.items()}
  read = both["inputs"][1]
  assert texts[1].startswith(read) and 0 < len(read) < len(texts[1])
  assert "Dataset had more than one element" in served(saved, ["a"] * 3)
  assert "Dataset was empty" in served(saved, [])


def test_the_server_of_the_page_answers_all_of_eight_clients(
    trainer, served, tmp_path):
  saved = trainer.make(*attentions(["V"]), "utils.run.batch_size = 8").export()
  texts = ["the statement", "a list of names", "", "so good", "all others"]
  expected = dict(zip(texts, served(saved, texts)["outputs"]))
  script, port = tmp_path / "serve.py", ports.free_ports(1)[0]
  script.write_text(next(text for language, text in documents.blocks("docs/serving.md")
                         if "ThreadingHTTPServer" in text))
  assert served.ask(str(script), saved.rpartition("/")[0], str(port)) == "ready\n"
  outcomes = clients.run(port, texts, clients=8, seconds=0.5)
  assert len(outcomes) >= 8
  for outcome in outcomes:
    assert outcome.status == 200
    assert [p["outputs"] for p in outcome.answer["predictions"]] == [
        expected[outcome.text]]
  connection = http.client.HTTPConnection("localhost", port, timeout=60)
  status, answer = clients.ask(connection, {"instances": texts * 3})  # Two batches.
  assert status == 200
  assert [p["outputs"] for p in answer["predictions"]] == [*expected.values()] * 3
  for wrong in (b"no JSON", [], {}, {"instances": []}, {"instances": [1]},
                {"instances": "text"}, {"instances": ["\ud800"]}, b""):
    assert clients.ask(connection, wrong) == (
        400, {"error": 'Send {"instances": ["a text", "another"]}.'})
