"""Models of Mesh TensorFlow's own Synthesizer become models of this package."""

import gin
import numpy as np
import pytest
from synthesizer_mtf import checks
from synthesizer_mtf.tools import from_mesh_tensorflow
from synthesizer_mtf.tools.base import checkpoint_writer
import tensorflow.compat.v1 as tf

CONFIG = """
# Parameters for Synthesizer:
encoder/transformer_layers.Synthesizer.synthesize_mode = 'random_plus_alpha'
Synthesizer.num_heads = %num_heads
Synthesizer.key_value_size = 5
Synthesizer.relative_attention_type = 'bias_shared'
num_heads = 3
"""


def layer(*names):
  shapes = {"q": (4, 15), "k": (4, 15), "v": (4, 15), "kv": (4, 15), "o": (15, 4),
            "R": (7, 3, 7), "alpha": (1,), "pi/kernel": (5, 9)}
  return {name: np.arange(np.prod(shapes[name])).reshape(shapes[name]).astype(
      np.float32 if name == "pi/kernel" else tf.bfloat16.as_numpy_dtype)
          for name in names}


def write(folder, layers, text=CONFIG):
  folder.mkdir()
  variables = {f"{place}/{name}": value for place, variables_ in layers.items()
               for name, value in variables_.items()}
  checkpoint_writer.write(str(folder), "model.ckpt-20", variables.items())
  (folder / "operative_config.gin").write_text(text)
  return str(folder)


@pytest.fixture
def model(tmp_path):
  place = "{}/block_{:03d}/layer_000/{}".format
  return write(tmp_path / "theirs", {
      place("encoder", 0, "Synthesizer"): layer("q", "k", "v", "o", "R", "alpha"),
      place("encoder", 1, "SelfAttention"): layer("q", "k", "v", "o"),
      place("decoder", 0, "Synthesizer"): layer("q", "kv", "o", "pi/kernel"),
      "shared": {"embedding": np.ones([6, 4], np.float32),
                 "embedding_slot_vr": np.ones([6], np.float32)}})


def test_variables_and_the_gin_file_are_of_our_attention(model, tmp_path, capsys):
  output = tmp_path / "ours"
  from_mesh_tensorflow.main([model, f"--output={output}"])
  assert "decoder D, encoder R+V" in capsys.readouterr().out
  reader = tf.train.load_checkpoint(str(output))
  ours = "encoder/block_000/layer_000/SyntheticAttention/"
  np.testing.assert_array_equal(
      reader.get_tensor(ours + "R"), layer("R")["R"].transpose(1, 0, 2))
  assert reader.get_tensor(ours + "alpha").shape == (2,)
  shapes = reader.get_variable_to_shape_map()
  w2 = "decoder/block_000/layer_000/SyntheticAttention/W2"
  assert shapes[w2] == [5, 9]
  assert reader.get_variable_to_dtype_map()[w2] == tf.bfloat16
  assert "encoder/block_001/layer_000/SelfAttention/q" in shapes
  assert "shared/embedding" in shapes and "shared/embedding_slot_vr" not in shapes
  assert not [name for name in shapes if "Synthesizer/" in name]
  gin.parse_config((output / "operative_config.gin").read_text(), skip_unknown=True)
  assert gin.query_parameter("decoder/synthesizer_stack.attention") == "D"
  first, second = gin.query_parameter("encoder/synthesizer_stack.attention")
  assert first == "R+V" and "SelfAttention" in repr(second)
  for name, value in {
      "RandomLogits.max_length": 7, "DenseLogits.max_length": 9,
      "DenseLogits.share_query": True, "Mixture.weights": "per_layer",
      "SyntheticAttention.key_value_size": 5, "SyntheticAttention.dropout_rate": 0.0,
      "SyntheticAttention.positions": "row",
      "SyntheticAttention.relative_attention_type": "bias_shared"}.items():
    assert gin.query_parameter(name) == value


@pytest.mark.parametrize("name, text, step, said", [
    ("Synthesizer", "Synthesizer.num_memory_heads = 1", None,
     "Synthesizer.num_memory_heads"),
    ("Synthesizer", CONFIG, 3, "20"),
    ("SelfAttention", CONFIG, None, "no variables of Mesh TensorFlow's"),
    (None, CONFIG, None, "model.ckpt-")])
def test_what_cannot_be_converted_is_said(name, text, step, said, tmp_path):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  if name:
    write(theirs, {f"encoder/block_000/layer_000/{name}": layer("kv", "o", "R")}, text)
  with pytest.raises((checks.Error, SystemExit)) as error:
    from_mesh_tensorflow.run(str(theirs), str(ours), step)
  assert said in str(error.value)
  assert not ours.exists()
