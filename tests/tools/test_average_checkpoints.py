"""`tools/average_checkpoints`: the mean of the last checkpoints, exactly."""

import fractions

import numpy as np
import pytest
from synthesizer_mtf.tools import average_checkpoints
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
import tensorflow.compat.v1 as tf

HALF = tf.bfloat16.as_numpy_dtype


def values(step, seed):
  generator = np.random.RandomState(seed)
  return {"a/kernel": generator.randn(3, 5).astype(HALF),
          "b": generator.randn(4).astype(np.float32),
          "b_slot_vc": np.float32(generator.rand()),
          "global_step": np.int64(step)}


@pytest.fixture
def model_dir(tmp_path):
  folder = tmp_path / "model"
  folder.mkdir()
  for step in (4, 8, 12, 100):
    checkpoint_writer.write(
        str(folder), f"model.ckpt-{step}", values(step, step).items())
  (folder / "operative_config.gin").write_text("d_model = 8\n")
  return folder


def mean(arrays):
  """The mean of numbers as fractions, rounded once."""
  total = np.vectorize(lambda *values: float(
      sum(fractions.Fraction(float(x)) for x in values) / len(values)))
  return np.asarray(total(*arrays))


@pytest.mark.parametrize("bytes_at_once", [1, 40, 2**26])
def test_the_mean_is_exact_and_the_step_is_the_last(
    bytes_at_once, model_dir, tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint_writer, "_BYTES_AT_ONCE", bytes_at_once)
  path = average_checkpoints.average(str(model_dir), 3, str(tmp_path / "mean"))
  reader = tf.train.load_checkpoint(path)
  sources = [values(step, step) for step in (8, 12, 100)]
  assert set(reader.get_variable_to_shape_map()) == set(sources[0])
  for name in ("a/kernel", "b", "b_slot_vc"):
    value = reader.get_tensor(name)
    assert value.dtype == sources[0][name].dtype
    np.testing.assert_array_equal(
        value, mean([s[name] for s in sources]).astype(value.dtype))
  assert reader.get_tensor("global_step") == 100
  assert reader.get_tensor("global_step").dtype == np.int64


def test_the_result_is_a_model_folder(model_dir, tmp_path):
  average_checkpoints.main([str(model_dir), "--last=2", f"--output={tmp_path}/mean"])
  folder = tmp_path / "mean"
  assert complete.latest(str(folder)) == f"{folder}/model.ckpt-100"
  assert tf.train.latest_checkpoint(str(folder)) == f"{folder}/model.ckpt-100"
  assert (folder / "operative_config.gin").read_text() == "d_model = 8\n"
  assert not list(tmp_path.glob("*.unfinished"))


def write_another_model(folder):
  other = {**values(12, 1), "b": np.zeros(5, np.float32)}
  checkpoint_writer.write(str(folder), "model.ckpt-12", other.items())


def damage(folder):
  path, = folder.glob("model.ckpt-12.data*")
  path.write_bytes(b"")


@pytest.mark.parametrize("harm, flags, message", [
    (write_another_model, [], "ckpt-12 and .*ckpt-100 are of different models: 1 "
     "variables differ, such as b;"),
    (damage, [], "model.ckpt-12.data.* bytes, of"),
    (str, ["--last=5"], "has 4 checkpoints, but --last is 5"),
    (str, ["--output={model}"], "is not empty; name a new folder")])
def test_checkpoints_without_a_mean_are_refused(
    harm, flags, message, model_dir, tmp_path):
  harm(model_dir)
  flags = [flag.replace("{model}", str(model_dir)) for flag in flags]
  with pytest.raises(SystemExit, match=message):
    average_checkpoints.main(
        [str(model_dir), "--last=2", f"--output={tmp_path}/mean", *flags])
  assert not (tmp_path / "mean").exists()


def test_checkpoints_that_were_left_are_not_averaged(model_dir, tmp_path):
  lines = ["model_checkpoint_path: 'model.ckpt-12'"] + [
      f"all_model_checkpoint_paths: 'model.ckpt-{step}'" for step in (100, 4, 8, 12)]
  (model_dir / "checkpoint").write_text("\n".join(lines))
  branches.prepare(str(model_dir))
  path = average_checkpoints.average(str(model_dir), 3, str(tmp_path / "mean"))
  assert complete.saved_step(path) == 12
  averaged = tf.train.load_checkpoint(path).get_tensor("b")
  np.testing.assert_array_equal(averaged, mean(
      [values(step, step)["b"] for step in (4, 8, 12)]).astype(averaged.dtype))
  with pytest.raises(ValueError, match=r"has 3 checkpoints that led to the last "
                                       r"\(model.ckpt-100 did not\), but --last is 4"):
    average_checkpoints.average(str(model_dir), 4, str(tmp_path / "more"))
