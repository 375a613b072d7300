"""Folders of tiny models with V, which `calibrate` reads."""

import numpy as np
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.calibrate import attention_bindings
from synthesizer_mtf.tools.calibrate import reading
import tensorflow.compat.v1 as tf

LENGTHS = {"inputs": 13, "targets": 11}
_SHAPES = {}  # Of the variables, with V and with T5's own layer; texts do not matter.


def bindings(folder, texts, pack):
  """A tiny model with V in float32, and its task of these texts."""
  (folder / "texts.tsv").write_text("".join(f"{text}\n" for text in texts))
  return [
      *models.TINY, "synthesizer_stack.attention = 'V'",
      "SyntheticAttention.relative_attention_type = 'bias_shared'",
      "Unitransformer.positional_embedding = False",
      "get_vocabulary.mixture_or_task_name = 'synth_text_pairs'",
      "MIXTURE_NAME = 'synth_text_pairs'",
      f"{vocabulary.PARAMETER} = '{vocabulary.BYTES}'",
      f"synthesizer_mtf.tasks.pairs.train = '{folder}/texts.tsv'",
      f"utils.run.sequence_length = {LENGTHS}",
      "utils.get_variable_dtype.master_dtype = 'float32'",
      f"mesh_train_dataset_fn.pack = {pack}"]


def write(folder, texts, pack=False, scale=0.5, stock=False):
  """Writes the folder of a model with random variables; returns its path.

  If `stock`, it has T5's own layer.
  """
  lines = bindings(folder, texts, pack)
  if stock:
    lines = [line.replace("SyntheticAttention", "SelfAttention") for line in lines
             if "synthesizer_stack" not in line]
  gin_files.parse([], lines)
  if stock not in _SHAPES:
    _SHAPES[stock] = reading.Graph(reading.Data(None, "train", 2).spec).shapes
  shapes = _SHAPES[stock]
  generator = np.random.RandomState(0)
  values = {name: np.float32(scale * generator.randn(*shape))
            for name, shape in shapes.items()}
  values["global_step"] = np.int64(7)
  values["shared/embedding_slot_v"] = np.float32(
      generator.rand(*shapes["shared/embedding"]))
  model = folder / "model"
  model.mkdir()
  checkpoint_writer.write(str(model), "model.ckpt-7", values.items())
  (model / "operative_config.gin").write_text("\n".join(lines) + "\n")
  return str(model)


def graph_of(model_dir, batch_size=2, make=reading.Graph):
  """(data, graph) of a folder's model."""
  gin_files.parse([f"{model_dir}/operative_config.gin"])
  attention_bindings.take_the_place_of_stock()
  data = reading.Data(None, "train", batch_size)
  graph = make(data.spec)
  graph.restore(tf.train.latest_checkpoint(model_dir))
  return data, graph
