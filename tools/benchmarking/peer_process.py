"""Trains Hugging Face's T5 in PyTorch or JAX, a step for each line that it reads.

`benchmark --peers=PYTHON` starts it with the Python of an environment that has them:

  PYTHON peer_process.py PyTorch float32 '{"inputs": 512, ...}'

It answers each line with one of JSON: first how many parameters are trained and the
versions, then the loss of each step: forward, backward, Adafactor, float32, or with
bfloat16 as its users have it: by autocast, and by the model's dtype. Of this package
it uses nothing.
"""

from collections.abc import Callable
import importlib.metadata
import json
import os
import sys
from typing import Any

import numpy as np
import transformers

_LEARNING_RATE = 0.01


def configuration(sizes: dict[str, Any]) -> transformers.T5Config:
  """Hugging Face's configuration of T5 with these sizes."""
  return transformers.T5Config(
      vocab_size=sizes["vocabulary"], d_model=sizes["d_model"], d_kv=sizes["d_kv"],
      d_ff=sizes["d_ff"], num_layers=sizes["num_layers"],
      num_heads=sizes["num_heads"], dropout_rate=sizes["dropout_rate"],
      decoder_start_token_id=0)


def tokens(sizes: dict[str, Any]) -> list[np.ndarray]:
  """<int64>[batch, length] of inputs and targets; the first row ends in padding."""
  made = []
  for length in (sizes["inputs"], sizes["targets"]):
    ids = np.random.RandomState(0).randint(
        2, sizes["vocabulary"], (sizes["batch"], length))
    ids[0, length * 3 // 4:] = 0
    made.append(ids)
  return made


def torch_step(sizes: dict[str, Any],
               precision: str) -> tuple[Callable[[], float], int]:
  """A function that trains one step and returns the loss; and how many parameters."""
  import torch
  from transformers import optimization

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  model = transformers.T5ForConditionalGeneration(configuration(sizes)).train()
  optimizer = optimization.Adafactor(
      model.parameters(), lr=_LEARNING_RATE, relative_step=False,
      scale_parameter=True, warmup_init=False)
  inputs, targets = map(torch.from_numpy, tokens(sizes))
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
  """A function that trains one step and returns the loss; and how many parameters."""
  import jax
  import optax

  model = transformers.FlaxT5ForConditionalGeneration(
      configuration(sizes), seed=0, dtype=jax.numpy.dtype(precision))
  optimizer = optax.adafactor(
      _LEARNING_RATE, multiply_by_parameter_scale=True, momentum=None)
  inputs, targets = tokens(sizes)
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


PEERS = {"PyTorch": (torch_step, ["torch", "transformers"]),
         "JAX": (jax_step, ["jax", "flax", "optax", "transformers"])}


def main(name: str, precision: str, sizes: str) -> None:
  """Answers a line of standard input with one of standard output."""
  make, packages = PEERS[name]
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # What libraries print is not an answer.
  step, parameters = make(json.loads(sizes), precision)
  versions = {package: importlib.metadata.version(package) for package in packages}
  print(json.dumps({"parameters": parameters, "versions": versions}),
        file=answers, flush=True)
  for _ in sys.stdin:
    print(json.dumps({"loss": step()}), file=answers, flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
