"""Exported models, loaded by TensorFlow alone, decode as the trainer does."""

import json
import pathlib
import subprocess
import sys

import cases
import gin
from mesh_tensorflow.transformer import utils
import models
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from test_decoding import SIZES
from test_gin_files import ATTENTIONS

BATCH = 2
STEP = 3
TEXTS = ["the statement", "a list of names"]

# Reads a folder and strings from each line, and writes what the model returns.
SERVER = """
import json, sys
import tensorflow as tf
import tensorflow_text
print(json.dumps(None), flush=True)
for line in sys.stdin:
  folder, *strings = json.loads(line)
  decode = tf.saved_model.load(folder).signatures["serving_default"]
  try:
    found = decode(inputs=tf.constant(strings, tf.string)).items()
    answer = {k: [s.decode() for s in v.numpy().tolist()] for k, v in found}
  except tf.errors.InvalidArgumentError as error:
    answer = str(error)
  ours = {"mesh_tensorflow", "seqio", "synthesizer_mtf", "t5"} & set(sys.modules)
  print(json.dumps([answer, sorted(ours)]), flush=True)
"""

# Names of gin files of whole layers, and what else they need to be tiny.
LAYERS = [name for name in ATTENTIONS
          if pathlib.Path(name).stem.upper() not in map(
              str.upper, cases.NOTATIONS)]

SMALL = sum(SIZES.values(), []) + [
    "d_model = 8", "d_ff = 12", "num_heads = 3", "d_kv = 5", "num_layers = 1",
    "dropout_rate = 0.0", "Unitransformer.max_length = 16",
    "Unitransformer.shared_embedding_and_softmax_weights = False",
    "Bitransformer.decode.max_decode_length = 6",
    "utils.get_variable_dtype.master_dtype = 'float32'",
    "utils.get_variable_dtype.slice_dtype = 'float32'",
    "utils.get_variable_dtype.activation_dtype = 'float32'",
    f"utils.run.batch_size = {BATCH}",
    "utils.run.sequence_length = {'inputs': 10, 'targets': 6}",
    "MIXTURE_NAME = 'synth_text_pairs'",
    f"infer_checkpoint_step = {STEP}"]


class Server:
  """A process that knows TensorFlow and not this package."""

  def __init__(self, folder):
    self._process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

  def __call__(self, saved, strings):
    self._process.stdin.write(json.dumps([str(saved), *strings]) + "\n")
    self._process.stdin.flush()
    answer = None
    while answer is None:
      answer = json.loads(self._process.stdout.readline())
    found, ours = answer
    assert not ours
    return found

  def close(self):
    self._process.stdin.close()
    self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  process = Server(tmp_path_factory.mktemp("server"))
  yield process
  process.close()


@pytest.fixture(autouse=True)
def as_the_launcher():
  """What else `tf.disable_v2_behavior` switches, and can be switched back."""
  tf.disable_resource_variables()
  tf.disable_control_flow_v2()
  yield
  tf.enable_control_flow_v2()


class Trainer:
  def __init__(self, folder, vocabulary):
    self.folder = folder
    self.vocabulary = vocabulary

  def parse(self, *bindings, files=()):
    models.parse_gin(["dataset.gin", "infer.gin", *files, "cpu.gin"], [
        *SMALL, f"input_filename = '{self.folder}/inputs'",
        f"output_filename = '{self.folder}/outputs'",
        "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
        f"'{self.vocabulary}'", *bindings])

  def save(self, model_type="bitransformer", targets_vocabulary=None):
    m = models.Model(model_type, 600, targets_vocabulary=targets_vocabulary)
    with m.tf_graph.as_default():
      ids = m.ids(np.ones((1, 1), int))
      logits, _ = m.model.call_simple(ids, ids, False)
      _, variables = m.run(logits, scale=1.0)
    with tf.Graph().as_default(), tf.Session() as session:
      for name, value in variables.items():
        tf.get_variable(name, initializer=value)
      tf.get_variable("global_step", initializer=np.int64(STEP))
      session.run(tf.global_variables_initializer())
      tf.train.Saver().save(session, f"{self.folder}/model.ckpt", STEP)

  def run(self, mode):
    utils.run(tpu_job_name=None, tpu=None, gcp_project=None, tpu_zone=None,
              model_dir=str(self.folder), mode=mode,
              export_path=str(self.folder / "export"))

  def infer(self, texts):
    (self.folder / "inputs").write_text("\n".join(texts) + "\n")
    self.run("infer")
    return (self.folder / f"outputs-{STEP}").read_text().splitlines()

  def export(self):
    self.run("export_infer")
    return next((self.folder / "export").iterdir())


@pytest.fixture
def trainer(tmp_path, sentencepiece_model):
  return Trainer(tmp_path, sentencepiece_model)


@pytest.mark.parametrize("variant", cases.NOTATIONS + LAYERS)
def test_an_exported_variant_decodes_as_the_trainer(variant, trainer, server):
  if variant in cases.NOTATIONS:
    trainer.parse(f"synthesizer_stack.attention = '{variant}'")
  else:
    trainer.parse(files=[variant])
  import time
  t=[time.time()]
  trainer.save()
  t.append(time.time())
  expected = trainer.infer(TEXTS)
  t.append(time.time())
  saved = trainer.export()
  t.append(time.time())
  got = server(saved, TEXTS)
  t.append(time.time())
  print(variant, np.diff(t).round(2), expected)
  assert got == {"inputs": TEXTS, "outputs": expected}
  assert len(set(expected)) == 2
