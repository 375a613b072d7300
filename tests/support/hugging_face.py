"""T5 of transformers, on Flax, in folders like those that users download."""

import inspect
import json
import os
import pydoc_data.topics
import shutil

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import sentencepiece
from support import models
from support.mtf_models import variables
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import checkpoint_writer
import tensorflow.compat.v1 as tf

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import transformers  # noqa: E402
from transformers.models.t5 import modeling_flax_t5  # noqa: E402

SIZES = {"vocab_size": 640, "d_model": 8, "d_kv": 5, "d_ff": 12, "num_layers": 2,
         "num_heads": 3}
T5_1_0 = {}
T5_1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# Longer than the `max_distance` of Mesh TensorFlow and transformers, which is 128.
LENGTH = 140


class _Numpy:
  """jax.numpy with the old name of a parameter that newer versions have renamed."""

  def __getattr__(self, name):
    return getattr(jnp, name)

  @staticmethod
  def clip(x, a_min=None, a_max=None):
    return jnp.clip(x, a_min, a_max)


if "a_max" not in inspect.signature(jnp.clip).parameters:
  modeling_flax_t5.jnp = _Numpy()


def _class(config):
  encoder = config.is_encoder_decoder is False
  return (transformers.FlaxT5EncoderModel if encoder
          else transformers.FlaxT5ForConditionalGeneration)


def write(folder, spiece=None, dtype=np.float32, **config):
  """Writes a folder with random weights; returns them by name.

  Args:
    folder: a pathlib.Path, which may exist.
    spiece: the path of a SentencePiece model, or None.
    dtype: the dtype of the weights.
    **config: arguments of `transformers.T5Config`, besides `SIZES`.
  """
  folder.mkdir(exist_ok=True)
  config = transformers.T5Config(
      **{**SIZES, "decoder_start_token_id": 0, **config})
  cls = _class(config)
  config.architectures = [cls.__name__.removeprefix("Flax")]
  config.save_pretrained(folder)
  shapes = cls(config, _do_init=False).params_shape_tree
  generator = np.random.RandomState(0)
  tensors = {}
  for key, value in flax.traverse_util.flatten_dict(shapes).items():
    scale = 0.4 if len(value.shape) > 1 else 1
    array = scale * generator.randn(*value.shape)
    array = array.T if key[-1] == "kernel" else array
    tensors[".".join([*key[:-1], "weight"])] = np.ascontiguousarray(
        array).astype(dtype)
  save(folder, tensors)
  if spiece:
    shutil.copy(spiece, folder / "spiece.model")
  return tensors


TEXTS = ["The statement  is executed, naïve or not.", "the </s> end</s>", "<pad>x<unk>",
         "</s>", "one <extra_id_0> two <extra_id_1>. <extra_id_99>", " blanks ", "№ ½"]


def vocabulary(folder, kind):
  """Trains a small SentencePiece model of a type, `spiece.model`; returns its path."""
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(pydoc_data.topics.topics["if"].lower().splitlines()),
      model_prefix=str(folder / "spiece"), vocab_size=70, pad_id=0, eos_id=1, unk_id=2,
      bos_id=-1, minloglevel=2, model_type=kind)
  return folder / "spiece.model"


def save(folder, tensors, name="model.safetensors"):
  safetensors.numpy.save_file(tensors, folder / name, {"format": "pt"})


def load(folder):
  return safetensors.numpy.load_file(folder / "model.safetensors")


def edit(folder, name="config.json", **changes):
  """Changes keys of a JSON file; None removes one."""
  path = folder / name
  settings = json.loads(path.read_text()) if path.exists() else {}
  settings.update(changes)
  path.write_text(json.dumps(
      {k: v for k, v in settings.items() if v is not None}))


def examples():
  """Makes inputs and targets <int>[2, `LENGTH`]; the second row of each is padded."""
  inputs, targets = np.random.RandomState(3).randint(3, 500, (2, 2, LENGTH))
  for ids, end in ((inputs, 9), (targets, 6)):
    ids[1, end - 1] = 1  # The end of a sequence.
    ids[1, end:] = 0
  return inputs, targets


class Flax:
  """Runs the model of a folder by the Flax T5 of transformers."""

  def __init__(self, folder):
    config = transformers.T5Config.from_pretrained(folder)
    self.model = _class(config).from_pretrained(folder)
    self._call = jax.jit(lambda params, **ids: self.model(**ids, params=params))

  def logits(self, inputs, targets):
    """Returns (logits, the encoder's output) for whole sequences."""
    before = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    out = self._call(
        self.model.params, input_ids=inputs,
        attention_mask=(inputs > 0).astype(int), decoder_input_ids=before,
        decoder_attention_mask=(targets > 0).astype(int))
    return np.asarray(out.logits), np.asarray(out.encoder_last_hidden_state)

  def encode(self, inputs):
    out = self._call(self.model.params, input_ids=inputs,
                     attention_mask=(inputs > 0).astype(int))
    return np.asarray(out.last_hidden_state)

  def generate(self, inputs, length):
    """Returns the greedy decode of ids without padding."""
    out = self.model.generate(
        inputs, max_length=length + 1, do_sample=False, num_beams=1)
    return np.asarray(out.sequences)[:, 1:]


class Mesh:
  """Runs the model of a folder by Mesh TensorFlow."""

  def __init__(self, folder, gin="operative_config.gin", targets_vocabulary=None):
    gin_files.parse([str(folder / gin)])
    self.m = models.Model(vocabulary=600, targets_vocabulary=targets_vocabulary)
    self._saved = variables(folder)

  def logits(self, inputs, targets, decode):
    """Returns the results of `Flax.logits`, and the ids of `decode` decoding steps."""
    m = self.m
    with m.tf_graph.as_default():
      ids = m.ids(inputs)
      logits, _ = m.model.call_simple(ids, m.ids(targets), False, mode="eval")
      with tf.variable_scope("", reuse=True):
        return self._run([logits, m.encode(ids),
                          m.model.decode(ids, max_decode_length=decode)])

  def encode(self, inputs):
    """Returns the output of a classifier's encoder."""
    m = self.m
    with m.tf_graph.as_default():
      ids = m.ids(inputs)
      m.model.call_simple(ids, m.ids(((1,), (1,))), False, mode="eval")
      with tf.variable_scope("", reuse=True):
        return self._run([m.encode(ids)])[0]

  def _run(self, tensors):
    names = {v.name for v in self.m.graph.all_variables}
    known = {name: value for name, value in self._saved.items() if name in names}
    assert names - set(known) <= {"classifier/kernel"}
    assert set(self._saved) - set(known) <= {"global_step"}
    (values,), _ = self.m.run(*tensors, values=known)
    return values


def save_variables(folder, step, variables):
  """Writes a checkpoint of some variables, by name."""
  checkpoint_writer.write(str(folder), f"model.ckpt-{step}", variables.items())


def with_our_attention(folder, copy, *gin_files, step=0, **more):
  """Copies an imported model, with our attention.

  Args:
    folder: the folder of the imported model.
    copy: the folder to write.
    *gin_files: lines of gin that choose the attention.
    step: the step of the checkpoint.
    **more: new variables of each self-attention layer.
  """
  shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*ckpt*"))
  with open(copy / "operative_config.gin", "a") as f:
    f.write("\n".join(gin_files) + "\n")
  ours = {name.replace("/SelfAttention/", "/SyntheticAttention/"): value
          for name, value in variables(folder).items()}
  ours["global_step"] = np.int64(step)
  ours.update({f"{name[:-1]}{new}": value for name in list(ours)
               if name.endswith("/SyntheticAttention/q")
               for new, value in more.items()})
  save_variables(copy, step, ours)
