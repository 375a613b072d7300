"""The runs of gpu_runs.py: their data, and their way there and back at a tiny size."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import seqio
from studies import gpu_prepare
from studies import gpu_runs
from support import paths
from support import processes
from support import stacks
from synthesizer_mtf.tools.base import results
from t5.data import preprocessors
import tensorflow as tf


def spans(length, noise, number):
  return gpu_runs.Spans({"length": length, "noise": noise, "eos": 1,
                         "sentinels": [*range(99, 99 - number, -1)]})


@pytest.mark.parametrize("inputs", [32, 128, 512])
def test_as_many_tokens_and_spans_are_left_out_as_in_t5(inputs):
  length, targets = preprocessors.random_spans_helper(inputs, .15, 3., 1, 1)
  theirs = preprocessors.random_spans_noise_mask(length, .15, [(0, 1), (2, 3)]).numpy()
  number = (np.diff(theirs.astype(int)) == 1).sum()
  ours = spans(length, theirs.sum(), number)
  masks = ours.mask(7, np.random.default_rng(0))
  assert (masks.sum(1) == theirs.sum()).all() and not masks[:, 0].any()
  assert ((np.diff(masks.astype(int)) == 1).sum(1) == number).all()
  assert len(np.unique(masks, axis=0)) == 7
  assert [part.shape for part in ours.corrupted(np.full((7, length), 5), masks)] == [
      (7, inputs), (7, targets)]


def test_spans_have_the_sentinels_of_t5():
  tokens, ours = np.arange(2, 42).reshape(2, 20), spans(20, 6, 3)
  mask = ours.mask(2, np.random.default_rng(1))
  vocabulary = seqio.PassThroughVocabulary(100)
  for ids, function in zip(ours.corrupted(tokens, mask), (
      preprocessors.noise_span_to_unique_sentinel,
      preprocessors.nonnoise_span_to_unique_sentinel)):
    for row, text, left_out in zip(ids, tokens, mask, strict=True):
      expected = function(tf.constant(text), tf.constant(left_out), vocabulary, None)
      np.testing.assert_array_equal(row, [*expected.numpy(), 1])


def test_all_sizes_of_spans_are_equally_likely():
  parts = gpu_runs._parts(6000, 5, 3, np.random.default_rng(0))
  ways = [p for p in itertools.product(range(1, 4), repeat=3) if sum(p) == 5]
  counts = [(parts == way).all(1).sum() for way in ways]
  assert sum(counts) == 6000 and np.abs(np.array(counts) - 1000).max() < 100


def test_each_pass_has_each_row_once_and_other_spans():
  tokens, ours = np.arange(2, 2 + 20 * 9), spans(20, 6, 3)
  batches = gpu_runs.training(tokens, ours, 4, seed=1)
  passes = [[next(batches) for _ in range(2)] for _ in range(2)]
  kept = [np.sort(np.concatenate([part[part > 99].ravel() for b in one for part in b]))
          for one in passes]
  assert all(len(set(ids)) == len(ids) for ids in kept)
  again = gpu_runs.training(tokens, ours, 4, seed=1)
  np.testing.assert_array_equal(next(again)[0], passes[0][0][0])
  assert (passes[0][0][0] != passes[1][0][0]).any()


def test_a_variable_begins_alike_in_all_rows_and_otherwise_with_another_seed():
  def value(*args):
    return gpu_runs.initial(*args[:1], [50, 40], "float32", [0., .5], *args[1:])

  np.testing.assert_array_equal(value("a/q", 1), value("a/q", 1))
  assert abs(value("a/q", 1).std() - .5) < .02
  for other in (value("a/k", 1), value("a/q", 2)):
    assert abs(np.corrcoef(value("a/q", 1).ravel(), other.ravel())[0, 1]) < .1
  assert (gpu_runs.initial("scale", [3], "float32", [1., 0.], 1) == 1).all()


@pytest.mark.parametrize("stored", ["gpu_runs.jsonl", "gpu_runs_more/*.jsonl"])
def test_the_page_has_the_table_of_the_stored_rows(stored, tmp_path):
  folders = []
  for path in sorted((paths.ROOT / "studies" / "results").glob(stored)):
    folders.append(tmp_path / path.stem)
    folders[-1].mkdir()
    (folders[-1] / "looks.jsonl").write_bytes(path.read_bytes())
  gpu_prepare.main([f"--out={tmp_path}", *(f"--results={f}" for f in folders)])
  page = (paths.ROOT / "studies" / "gpu_runs.md").read_text()
  assert (folders[0] / "results.md").read_text() in page


def test_runs_of_other_seeds_make_one_table(tmp_path):
  stored = paths.ROOT / "studies" / "results" / "gpu_runs.jsonl"
  rows = [json.loads(line) for line in stored.open()]

  def part(name, keep, steps=825):
    (tmp_path / name).mkdir()
    (tmp_path / name / "looks.jsonl").write_text("".join(json.dumps(
        {**row, **({"step": steps} if row["part"] == "end" else {})}) + "\n"
        for row in rows if row.get("seed", keep) == keep))
    return f"--results={tmp_path / name}"

  one, two, longer = part("one", 1), part("two", 2), part("longer", 2, 900)
  gpu_prepare.main([f"--out={tmp_path}", one, two])
  assert (tmp_path / "one" / "results.md").read_text() in (
      paths.ROOT / "studies" / "gpu_runs.md").read_text()
  for others, told in (((one, longer), "ended after [825, 900] steps"),
                       ((one, one), "('V', 1)] (row, seed) are in several folders")):
    with pytest.raises(SystemExit) as error:
      gpu_prepare.main([f"--out={tmp_path}", *others])
    assert told in str(error.value)


def script(*flags, folder):
  """Runs gpu_runs.py where TensorFlow and this package cannot be imported."""
  for name in ("tensorflow", "synthesizer_mtf"):
    (folder / f"{name}.py").write_text("raise ImportError('not here')\n")
  subprocess.run(
      [sys.executable, paths.ROOT / "studies" / "gpu_runs.py", *flags], check=True,
      env={**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"})


@stacks.only_new
@pytest.mark.slow
def test_rows_travel_train_and_come_back_as_checkpoints(tmp_path, sentencepiece_model):
  text = tmp_path / "text.txt"
  text.write_text("The quick brown fox jumps over the lazy dog again.\n" * 200)
  steps, out = tmp_path / "steps", tmp_path / "out"
  sizes = {"d_model": 16, "d_ff": 24, "num_heads": 2, "d_kv": 6, "num_layers": 1,
           "synthesizer_mtf.tasks.span_corruption.noise_density": 0.3,
           "synthesizer_mtf.tasks.text.train": str(text),
           "synthesizer_mtf.tasks.text.validation": str(text),
           "synthesizer_mtf.tasks.vocabulary.sentencepiece_model":
               str(sentencepiece_model)}
  gpu_prepare.main([
      f"--out={steps}", "--rows=V,FrozenQK", "--inputs=32", "--batch=4",
      "--gin_file=mixed_precision.gin",
      *(f"--gin_param={name} = {value!r}" for name, value in sizes.items())])
  script(f"--steps={steps}", f"--out={out}", "--seeds=1,2", "--most=60", "--every=30",
         "--held_out=2", "--save=FrozenQK", "--repeats=1", folder=tmp_path)
  rows = [json.loads(line) for line in (out / "looks.jsonl").open()]
  looks = {(row["row"], row["seed"], row["step"]): row["held_out"] for row in rows
           if row["part"] == "look"}
  assert len(looks) == 2 * 2 * 3
  assert all(looks[name, seed, 60] < looks[name, seed, 0] - 1
             for name in ("V", "FrozenQK") for seed in (1, 2))
  assert looks["V", 1, 0] == pytest.approx(looks["FrozenQK", 1, 0], abs=1e-4)
  assert abs(looks["V", 1, 0] - looks["V", 2, 0]) > 1e-3
  # Losses have the bits of float32, though activations have those of bfloat16.
  # Those of 2 to 4 nats are multiples of 1/64 there.
  assert any(.01 < 64 * loss % 1 < .99
             for row in rows for loss in row.get("by_batch", ()))
  assert looks["V", 1, 60] != looks["FrozenQK", 1, 60]
  gpu_prepare.main([f"--out={steps}", f"--results={out}"])
  assert "| FrozenQK | " in (out / "results.md").read_text()
  assert (out / "results.png").exists()
  model = tf.train.load_checkpoint(str(steps / "models" / "FrozenQK" / "model.ckpt-60"))
  assert model.get_tensor("global_step") == 60
  q = "encoder/block_000/layer_000/SyntheticAttention/q"
  about = json.loads((steps / "about.json").read_text())
  assert about["noise"] == round(0.3 * about["length"])
  np.testing.assert_array_equal(model.get_tensor(q), gpu_runs.initial(
      q, [16, 12], "float32", about["initial"][q], 1))
  end, = [row["held_out"] for row in rows if row["part"] == "end" and
          (row["row"], row["seed"]) == ("FrozenQK", 1)]
  assert evaluated(steps / "models" / "FrozenQK", tmp_path) == pytest.approx(
      end, abs=.05)  # Other spans are left out.


def evaluated(folder, cwd):
  """The log perplexity by the trainer, with the gin files that gpu_runs.md names."""
  others = {"--gin_file=jax.gin": "--gin_file=cpu.gin",
            "--gin_file=export_step.gin": "--gin_file=perplexity_eval.gin"}
  _, *words = (folder / "commands" / "command").read_text().split(" --")
  words = [others.get(f"--{word}", f"--{word}") for word in words]
  done = processes.run([word for word in words if "export_step" not in word], cwd)
  assert done.returncode == 0, done.stderr[-3000:]
  return results.log_perplexity(folder, 60)
