"""The gin files of tiny models, and the variables of their checkpoints."""

from synthesizer_mtf.trainer.checkpoints import complete
import tensorflow.compat.v1 as tf

FILES = ["dataset.gin", "models/laptop.gin", "cpu.gin"]


def variables(model_dir, step=None):
  """The variables of a checkpoint, by default the last, as arrays by name."""
  path = (f"{model_dir}/model.ckpt-{step}" if step is not None
          else complete.find(str(model_dir))[-1])
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name)
          for name in reader.get_variable_to_shape_map()}


def attention(model_dir, stack="encoder"):
  """Returns the class and the variables of a trained model's self-attention."""
  paths = [name.split("/") for name in variables(model_dir)
           if name.startswith(f"{stack}/block_000/layer_000/")
           and "Attention" in name and "_slot_" not in name]
  layer, = {name[3] for name in paths}
  return layer, {name[4] for name in paths}
