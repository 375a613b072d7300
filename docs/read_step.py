"""Runs an exported training step: python read_step.py FOLDER.

It needs jax, numpy and flatbuffers, which jax.export reads files with.
`synthesizer_mesh_transformer ... --gin_file=export_step.gin` writes the FOLDER.
"""

import json
import sys

import jax
import numpy as np

folder = sys.argv[1]
with open(f"{folder}/step.json", encoding="utf-8") as f:
  about = json.load(f)
with open(f"{folder}/step.jax", "rb") as f:
  step = jax.export.deserialize(bytearray(f.read()))
saved = np.load(f"{folder}/state.npz")
state = {name: jax.device_put(saved[name]) for name in about["state"]}
number = int(saved["global_step"])
run = jax.jit(lambda inputs, state: step.call(*inputs, *state))

for _ in range(3):
  # Features, such as "inputs" and "targets", are ids; the others are the step's number.
  inputs = [np.ones(shape, dtype) if shape else np.asarray(number, dtype)
            for _, shape, dtype in about["inputs"]]
  loss, *new = run(inputs, [state[name] for name in about["state"]])
  state.update(zip(about["changed"], new))
  print(f"step {number}: loss {float(loss):.4f}")
  number += 1
