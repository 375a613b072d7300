"""Makes tiny models of T5's `MtfModel`, on the launcher's pairs of words."""

import pathlib

import gin
from support import launching
from synthesizer_mtf import gin_files
import t5.models
import tensorflow.compat.v1 as tf

TASK = "synth_text_pairs"
FILES = ["dataset.gin", "models/laptop.gin", "cpu.gin"]
LENGTHS = {"inputs": 16, "targets": 12}


class Folder(launching.Launcher):
  """A folder with data, bindings of a tiny model, and a stock model after one step."""

  def __init__(self, folder, vocabulary):
    super().__init__(folder, vocabulary)
    self.stock = folder / "stock"
    self.parse()
    self.model("stock").train(TASK, 1)
    gin.clear_config()

  def bindings(self):
    return [*super().bindings(), "num_layers = 1"]

  def parse(self, *bindings, files=FILES):
    gin_files.parse(files, [*self.bindings(), *bindings])

  def data(self):
    """Binds only the data in gin, as a notebook does before it loads a model."""
    gin_files.add_search_path()
    gin.parse_config([b for b in self.bindings() if "synthesizer_mtf.tasks" in b])

  def model(self, name, *bindings, **kwargs):
    """Makes an `MtfModel` in the subfolder `name`, with extra gin bindings."""
    return t5.models.MtfModel(
        model_dir=str(self.folder / name), tpu=None, batch_size=4,
        sequence_length=LENGTHS, iterations_per_loop=1,
        learning_rate_schedule=0.001, extra_gin_bindings=list(bindings), **kwargs)


def variables(model_dir, step=None):
  """The variables of a checkpoint, by default the last, as arrays by name."""
  path = (f"{model_dir}/model.ckpt-{step}" if step is not None
          else tf.train.latest_checkpoint(str(model_dir)))
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name)
          for name in reader.get_variable_to_shape_map()}


def attention(model_dir, stack="encoder"):
  """Returns the class and the variables of a trained model's self-attention."""
  names = [name.split("/") for name in variables(model_dir)
           if name.startswith(f"{stack}/block_000/layer_000/")
           and "Attention" in name and "_slot_" not in name]
  found = {name[3] for name in names}
  assert len(found) == 1, names
  return found.pop(), {name[4] for name in names}


def predictions(path):
  """Returns the lines of the predictions whose file name begins with `path`."""
  found, = pathlib.Path(path).parent.glob(pathlib.Path(path).name + "-*")
  return launching.decoded(found)
