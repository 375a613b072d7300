"""`calibrate`: the average of a trained attention takes the place of V."""

import numpy as np
import pytest
from support import models
from support import mtf_models
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools import calibrate
from synthesizer_mtf.tools import checkpoint_writer
from synthesizer_mtf.tools.calibration import reading
import tensorflow.compat.v1 as tf

LENGTHS = {"inputs": 13, "targets": 11}


def bindings(folder, texts, pack, *more):
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
      f"mesh_train_dataset_fn.pack = {pack}", *more]


def write(folder, texts, pack=False, scale=0.5, more=()):
  """Writes the folder of a model with random variables; returns its path."""
  lines = bindings(folder, texts, pack, *more)
  gin_files.parse([], lines)
  shapes = reading.Graph(reading.Data(None, "train", 2).spec).shapes
  generator = np.random.RandomState(0)
  values = {name: np.float32(scale * generator.randn(*shape))
            for name, shape in shapes.items()}
  values["global_step"] = np.int64(7)
  model = folder / "model"
  model.mkdir()
  checkpoint_writer.write(str(model), "model.ckpt-7", values.items())
  (model / "operative_config.gin").write_text("\n".join(lines) + "\n")
  return str(model)


def losses(model_dir, batches=1, batch_size=2):
  """The log-perplexity of the rows of the training data."""
  gin_files.parse([f"{model_dir}/operative_config.gin"])
  data = reading.Data(None, "train", batch_size)
  graph = reading.Graph(data.spec)
  graph.restore(tf.train.latest_checkpoint(model_dir))
  return np.concatenate([graph.losses(batch)[0] for batch in data.batches(batches)])


@pytest.mark.parametrize("pack, texts", [
    (False, ["a bird\tein Tier"]), (True, ["a b\tx", "a b\tx"])])
def test_with_one_text_repeated_r_computes_what_v_does(pack, texts, tmp_path):
  model = write(tmp_path, texts, pack)
  calibrate.main([f"--model_dir={model}", "--to=R", f"--output={tmp_path}/r",
                  "--batches=2", "--batch_size=3"])
  np.testing.assert_allclose(
      losses(f"{tmp_path}/r"), losses(model), rtol=1e-5, atol=1e-5)
  old, new = (mtf_models.variables(each) for each in (model, f"{tmp_path}/r"))
  place = "decoder/block_001/layer_000/SyntheticAttention/"
  assert new[place + "R"].shape == (2, LENGTHS["targets"], LENGTHS["targets"])
  assert set(old) - set(new) == {name for name in old if name[-2:] in ("/q", "/k")
                                 and "SyntheticAttention" in name}
  for name in set(old) & set(new):
    np.testing.assert_array_equal(old[name], new[name])
