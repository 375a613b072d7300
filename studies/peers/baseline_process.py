"""Runs Hugging Face's T5 in another library, one step for each line that it reads.

`benchmark --baselines=PYTHON` starts this script with the Python of an environment that
has the libraries:

  PYTHON baseline_process.py PyTorch train float32 '{"inputs": 512, ...}'

The script trains in PyTorch or JAX, or decodes in PyTorch or CTranslate2. It answers
with lines of JSON: first the number of parameters and the versions, then for each line
the loss of a step (forward, backward, Adafactor), or the decoded ids. Products are in
float32, or in bfloat16 as users of the library choose it: by autocast in PyTorch, by
the model's dtype in JAX, and by the compute type in CTranslate2, which also has int8.
The script uses nothing of this package.
"""

from collections.abc import Callable
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
from typing import Any

import numpy as np
import transformers

_LEARNING_RATE = 0.01
_ALPHA = 0.6  # The exponent of the length penalty in beam search.
_CORES = len(os.sched_getaffinity(0))


def configuration(sizes: dict[str, Any]) -> transformers.T5Config:
  """Returns Hugging Face's configuration of T5 with these sizes."""
  return transformers.T5Config(
      vocab_size=sizes["vocabulary"], d_model=sizes["d_model"], d_kv=sizes["d_kv"],
      d_ff=sizes["d_ff"], num_layers=sizes["num_layers"],
      num_heads=sizes["num_heads"], dropout_rate=sizes["dropout_rate"],
      decoder_start_token_id=0)


def tokens(sizes: dict[str, Any], name: str, batch: str = "batch") -> np.ndarray:
  """Returns inputs or targets: <int64>[batch, length], the first row with padding."""
  length = sizes[name]
  ids = np.random.RandomState(0).randint(
      2, sizes["vocabulary"], (sizes[batch], length))
  ids[0, length * 3 // 4:] = 0
  return ids


def torch_step(sizes: dict[str, Any],
               precision: str) -> tuple[Callable[[], float], int]:
  """Returns (a function that trains a step and returns the loss, parameters)."""
  import torch
  from transformers import optimization

  torch.set_num_threads(_CORES)
  torch.manual_seed(0)
  model = transformers.T5ForConditionalGeneration(configuration(sizes)).train()
  optimizer = optimization.Adafactor(
      model.parameters(), lr=_LEARNING_RATE, relative_step=False,
      scale_parameter=True, warmup_init=False)
  inputs, targets = (torch.from_numpy(tokens(sizes, name))
                     for name in ("inputs", "targets"))
  mask = (inputs != 0).long()
  labels = torch.where(targets == 0, -100, targets)

  def step():
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
      loss = model(input_ids=inputs, attention_mask=mask, labels=labels).loss
    loss.backward()
    optimizer.step()
    return loss.item()

  return step, sum(p.numel() for p in model.parameters())


def jax_step(sizes: dict[str, Any],
             precision: str) -> tuple[Callable[[], float], int]:
  """Returns (a function that trains a step and returns the loss, parameters)."""
  import jax
  import optax

  model = transformers.FlaxT5ForConditionalGeneration(
      configuration(sizes), seed=0, dtype=jax.numpy.dtype(precision))
  optimizer = optax.adafactor(
      _LEARNING_RATE, multiply_by_parameter_scale=True, momentum=None)
  inputs, targets = tokens(sizes, "inputs"), tokens(sizes, "targets")
  weights = (targets != 0).astype(np.float32)
  shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]

  def loss_of(parameters, key):
    logits = model(
        input_ids=inputs, attention_mask=(inputs != 0).astype(int),
        decoder_input_ids=shifted, params=parameters, train=True,
        dropout_rng=key).logits
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (losses * weights).sum() / weights.sum()

  @jax.jit
  def trained(parameters, slots, key):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, key)
    updates, slots = optimizer.update(gradients, slots, parameters)
    return optax.apply_updates(parameters, updates), slots, loss

  state = [model.params, optimizer.init(model.params), jax.random.PRNGKey(0)]

  def step():
    parameters, slots, key = state
    key, used = jax.random.split(key)
    parameters, slots, loss = jax.block_until_ready(
        trained(parameters, slots, used))
    state[:] = parameters, slots, key
    return float(loss)

  return step, sum(leaf.size for leaf in jax.tree_util.tree_leaves(model.params))


def torch_decoding(sizes: dict[str, Any],
                   precision: str) -> tuple[Callable[[], list], int]:
  """Returns (a function that decodes a batch and returns its ids, parameters)."""
  import torch

  torch.set_num_threads(_CORES)
  model = transformers.T5ForConditionalGeneration.from_pretrained(
      sizes["folder"], dtype=getattr(torch, precision)).eval()
  model.generation_config.eos_token_id = None  # Every output has the full length.
  inputs = torch.from_numpy(tokens(sizes, "inputs", "decode_batch"))
  search = {"num_beams": sizes["beam"], "length_penalty": _ALPHA}

  @torch.inference_mode()
  def decode():
    ids = model.generate(
        input_ids=inputs, attention_mask=(inputs != 0).long(), do_sample=False,
        max_new_tokens=sizes["targets"], **(search if sizes["beam"] > 1 else {}))
    return ids[:, 1:].tolist()

  return decode, sum(p.numel() for p in model.parameters())


def ctranslate2_decoding(sizes: dict[str, Any],
                         precision: str) -> tuple[Callable[[], list], int]:
  """Does what `torch_decoding` does, on the same folder, converted for CTranslate2."""
  import ctranslate2

  converter = ctranslate2.converters.TransformersConverter(sizes["folder"])
  with tempfile.TemporaryDirectory() as folder:
    path = converter.convert(os.path.join(folder, "converted"))
    translator = ctranslate2.Translator(
        path, compute_type=precision, intra_threads=_CORES, inter_threads=1)
  tokenizer = transformers.AutoTokenizer.from_pretrained(sizes["folder"])
  texts = [tokenizer.convert_ids_to_tokens(row[row != 0])
           for row in tokens(sizes, "inputs", "decode_batch")]

  def decode():
    found = translator.translate_batch(
        texts, beam_size=sizes["beam"], length_penalty=_ALPHA,
        max_decoding_length=sizes["targets"], min_decoding_length=sizes["targets"])
    return [tokenizer.convert_tokens_to_ids(one.hypotheses[0]) for one in found]

  model = transformers.T5ForConditionalGeneration.from_pretrained(sizes["folder"])
  return decode, model.num_parameters()


PEERS = {
    ("PyTorch", "train"): (torch_step, ["torch", "transformers"]),
    ("JAX", "train"): (jax_step, ["jax", "flax", "optax", "transformers"]),
    ("PyTorch", "decode"): (torch_decoding, ["torch", "transformers"]),
    ("CTranslate2", "decode"): (
        ctranslate2_decoding, ["ctranslate2", "torch", "transformers"])}


def main(name: str, measure: str, precision: str, sizes: str) -> None:
  """Answers each line of standard input with a line of standard output."""
  make, packages = PEERS[name, measure]
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # Libraries print to standard error, so only answers reach the pipe.

  def answer(**fields):
    print(json.dumps(fields), file=answers, flush=True)

  missing = [name for name in packages if not importlib.util.find_spec(name)]
  if missing:
    answer(obstacle=f"has no package {missing[0]}")
    return
  try:
    step, parameters = make(json.loads(sizes), precision)
  except ValueError as error:  # For example, the processor lacks the precision.
    answer(obstacle=f"refuses: {error}")
    return
  versions = {package: importlib.metadata.version(package) for package in packages}
  answer(parameters=parameters, versions=versions)
  for _ in sys.stdin:
    answer(result=step())


if __name__ == "__main__":
  main(*sys.argv[1:])
