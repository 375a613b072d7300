"""`make demo` at its smallest scale, with one layer, and the README's Python."""

import itertools
import json
import re
import subprocess
import sys
import types

from matplotlib import pyplot
import numpy as np
import pytest
import sacrebleu
import seqio
from support import cases
from support import documents
from support import mtf_models
from support import processes
from support import reference
from synthesizer_mtf import gin_files
from synthesizer_mtf.demo import __main__ as demo
from synthesizer_mtf.demo import data
from synthesizer_mtf.demo import name_pairs
from synthesizer_mtf.demo import report
from synthesizer_mtf.tools.experiments import process

HEADS = 4


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  """The demo's folder, with its data."""
  folder = tmp_path_factory.mktemp("demo") / "demo_output"
  data.make(folder / "data")
  return folder


def test_data_are_the_same_each_time_and_complete_files_are_left(folder, tmp_path):
  counts = data.make(tmp_path)
  assert data.make(folder / "data") == counts
  for path in tmp_path.iterdir():
    assert path.read_bytes() == (folder / "data" / path.name).read_bytes()
  questions = tmp_path / "questions.txt"
  asked = set(questions.read_text().splitlines())
  assert asked and not asked & {source for source, _ in name_pairs.split()[0]}
  questions.write_text("kept\n")
  assert data.make(tmp_path) == counts
  assert questions.read_text() == "kept\n"


def start(words, **streams):
  """Starts a command of the demo as a fork, with one layer."""
  return processes.Process([*words, "--gin_param=num_layers = 1"], **streams)


def test_demo_runs_and_a_second_run_says_that_it_is_done(folder, capsys, monkeypatch):
  monkeypatch.setattr(process, "subprocess", types.SimpleNamespace(
      **{**vars(subprocess), "Popen": start}))
  monkeypatch.setattr(process, "POLL_SECONDS", 0.05)
  monkeypatch.setattr(pyplot, "close", lambda figure: None)
  flags = ["--scale=test", "--attention", "R+V", f"--output_dir={folder}"]
  assert demo.main(flags) == 0
  first = capsys.readouterr().out
  row, = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
  check_row(row, folder)
  check_picture(row, folder)
  assert report.table([row]) in first
  assert "tensorboard --logdir" in first
  assert first.count("--model_dir=") == 5
  assert "100%" in first and first.count("%|") <= 2 * 3

  assert demo.main(flags) == 0
  second = capsys.readouterr().out
  assert "Everything was done before" in second
  assert report.table([row]) in second
  assert "--gin_file" not in second


def check_row(row, folder):
  """Compares a row with the checkpoints and with the decoded lines."""
  model = Model(mtf_models.variables(folder / "r+v" / "pretrain", 4))
  assert row["attention"] == "R+V" and row["params"] == model.num_parameters
  gin_files.parse([str(folder / "data" / "data.gin")])
  examples = list(itertools.islice(seqio.get_mixture_or_task(
      "synth_text_span_corruption").get_dataset(
          {"inputs": 128, "targets": 32}, "validation", shuffle=False,
          seed=1).as_numpy_iterator(), 16))
  ids = (np.array([e[name] for e in examples]) for name in ("inputs", "targets"))
  assert row["log_perplexity"] == pytest.approx(model.log_perplexity(*ids), rel=1e-5)
  decoded, targets = (
      (folder / "r+v" / "finetune" / "validation_eval" / f"synth_text_pairs_{name}")
      .read_text().splitlines() for name in ("8_predictions", "targets"))
  assert len(decoded) == len(targets) == 8
  assert row["accuracy"] == 100 * np.mean([a == b for a, b in zip(decoded, targets)])
  assert row["bleu"] == pytest.approx(sacrebleu.corpus_bleu(
      decoded, [targets], tokenize="intl").score, abs=1e-4)
  assert row["steps_per_sec"] < 1000


def check_picture(row, folder):
  """Compares the curves that were drawn last with the losses in the logs."""
  for panel, name in zip(pyplot.gcf().axes, ("pretrain", "finetune"), strict=True):
    logged = re.findall(r"tf_loss\[(\S+?)\]\[(\d+)\]",
                       (folder / "r+v" / f"{name}.log").read_text())
    losses = {int(step): float(loss) for loss, step in logged}
    drawn = list(losses.values())
    curve, smoothed, *crosses = panel.lines
    for line in (curve, smoothed):
      np.testing.assert_array_equal(line.get_xdata(), list(losses))
    np.testing.assert_allclose(curve.get_ydata(), drawn)
    np.testing.assert_allclose(
        smoothed.get_ydata(), np.cumsum(drawn) / range(1, len(losses) + 1))
    held_out = {"pretrain": [(max(losses), row["log_perplexity"])], "finetune": []}
    assert [(*line.get_xdata(), *line.get_ydata())
            for line in crosses] == held_out[name]
    assert smoothed.get_label() == "R+V" + (
        "" if crosses else f", BLEU of held-out names {row['bleu']:.1f}")
  assert (folder / "loss.png").read_bytes()[1:4] == b"PNG"


class Model:
  """T5's encoder and decoder with R+V from a checkpoint, written from the papers."""

  def __init__(self, saved):
    self._saved = {name: value.astype(float) for name, value in saved.items()}
    self.num_parameters = sum(
        value.size for name, value in self._saved.items()
        if "_slot_" not in name and name != "global_step")

  def log_perplexity(self, inputs, targets):
    """The mean loss of ids [batch, length], of which 0 is padding."""
    memory = self._stack("encoder", inputs, inputs > 0)
    before = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    x = self._stack("decoder", before, targets > 0, memory)
    logits = x @ self._saved["shared/embedding"].T / np.sqrt(x.shape[-1])
    right = np.take_along_axis(reference.softmax(logits), targets[..., None], -1)
    return -np.log(right[targets > 0]).mean()

  def _stack(self, stack, ids, is_text, memory=None):
    x, decoder = self._saved["shared/embedding"][ids], memory is not None
    bias = reference.relative_bias(self._saved[
        f"{stack}/block_000/layer_000/SyntheticAttention/relative_attention_bias"],
                                   ids.shape[1], decoder)
    layers = [f"{stack}/block_000/layer_{i:03}" for i in range(3)]
    x = x + self._r_plus_v(layers[0], x, is_text, bias, decoder)
    if decoder:
      x = x + self._cross_attention(layers[1], x, memory)
    x = x + self._feed_forward(layers[1 + decoder], x)
    return self._norm(stack, x)

  def _norm(self, name, x):
    return x / np.sqrt(np.mean(x ** 2, -1, keepdims=True) + 1e-6) * (
        self._saved[f"{name}/rms_norm/scale"])

  def _of(self, layer):
    return {name.rpartition("/")[2]: value for name, value in self._saved.items()
            if name.startswith(f"{layer}/")}

  def _r_plus_v(self, layer, x, is_text, bias, decoder):
    p, y = self._of(f"{layer}/SyntheticAttention"), self._norm(layer, x)
    call = cases.Call(y, np.ones(x.shape[:2], int), HEADS)
    r, v = reference.softmax(p["alpha"]).T[..., None, None]
    logits = r * cases.random(p, call) + v * cases.dot_product(p, call) + bias
    return reference.output(
        logits, p, y, reference.mask(is_text, decoder), HEADS)

  def _cross_attention(self, layer, x, memory):
    p, y = self._of(f"{layer}/EncDecAttention"), self._norm(layer, x)
    q, k = (cases.heads_of(a, p[n], HEADS) for a, n in ((y, "q"), (memory, "k")))
    everything = np.ones([*y.shape[:2], memory.shape[1]], bool)
    return reference.output(
        np.einsum("bhik,bhjk->bhij", q, k), p, memory, everything, HEADS)

  def _feed_forward(self, layer, x):
    wi, wo = (self._saved[f"{layer}/DenseReluDense/{n}/kernel"] for n in ("wi", "wo"))
    return np.maximum(0, self._norm(layer, x) @ wi) @ wo


def test_the_readmes_python_trains_on_the_data_of_the_demo(folder):
  script, = (text for language, text in documents.blocks("README.md")
             if language == "python")
  done = processes.run_program(
      [sys.executable, "-c", script.replace("steps=1000", "steps=1")], folder.parent)
  assert done.returncode == 0, done.stderr[-3000:]
  assert (folder.parent / "trained" / "names_r+v" / "model.ckpt-1.index").exists()
