"""Writes training steps and decoders as files that JAX runs without TensorFlow.

  python -m studies.jax_steps --out=FOLDER
  python jax_speed.py --steps=FOLDER --json=results.json     # where the GPU is

Each program is two files: NAME.step, a compressed `jax.export.Exported`, and NAME.json,
its inputs and variables with their shapes. The models are T5's, with its relative
position bias and dropout.
"""

import argparse
import dataclasses
import itertools
import json
import lzma
import os

import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.runtime import mesh as jax_mesh
from synthesizer_mtf.runtime import program
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.trainer.data import seed
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.model import jax_runtime
import tensorflow.compat.v1 as tf

_ONE_BATCH = ("utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = "
              "None")


def main(argv: list[str] | None = None) -> None:
  """Parses flags and writes the files."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--out", required=True, metavar="FOLDER")
  add("--rows", default="V,R,FR,D,R+V")
  add("--lengths", default="512,2048", help="of the inputs")
  add("--dtypes", default="float32,bfloat16")
  add("--measures", default="train,decode")
  for name, value in (("vocabulary", 32128), ("d_model", 512), ("d_kv", 64),
                      ("d_ff", 2048), ("num_layers", 6), ("num_heads", 8),
                      ("targets", 128), ("decode_batch", 16), ("tokens", 16384),
                      ("losses", 0)):
    add(f"--{name}", type=int, default=value)
  add("--tf32", action="store_true")
  args = parser.parse_args(argv)
  os.makedirs(args.out, exist_ok=True)
  for row, length, dtype, measure in itertools.product(
      args.rows.split(","), map(int, args.lengths.split(",")), args.dtypes.split(","),
      args.measures.split(",")):
    sizes = {f.name: getattr(args, f.name) for f in dataclasses.fields(
        model.Configuration) if hasattr(args, f.name)}
    config = model.Configuration(
        inputs=length, batch=max(args.tokens // length, 1), relative_bias=True,
        device="", **sizes)
    name = f"{measure}-{row}-{length}-{dtype}"
    write(os.path.join(args.out, name), row, config, dtype, measure, args.tf32,
          args.losses)
    print(name, os.path.getsize(os.path.join(args.out, name + ".step")), flush=True)


def write(path: str, row: str, config: model.Configuration, dtype: str, measure: str,
          tf32: bool = False, losses: int = 0) -> None:
  """Writes the two files of a program.

  Args:
    path: without the files' endings.
    row: a notation.
    config: the sizes.
    dtype: of the activations.
    measure: a key of `model.MEASURES`.
    tf32: whether GPUs may round the factors of products in float32.
    losses: how many losses to compute here; with them, initial values are written.
  """
  graph = tf.Graph()
  with graph.as_default(), jax_runtime.loops_as_functions(), seed.remembering_loops():
    tf.set_random_seed(0)
    mesh_impl = _lowered(row, config, dtype, measure)
    made = mesh_impl.compile(not tf32)
    described = {
        "row": row, "dtype": dtype, "measure": measure,
        "sizes": vars(config),
        "inputs": [[t.op.name, t.shape.as_list(), np.dtype(
            program.jax_type(t)).name] for t in mesh_impl.input_tensors],
        "state": [[name, v.old.shape.as_list(), v.old.dtype.name]
                  for name, v in sorted(mesh_impl.variables.items())],
        "changed": made.changed}
    if losses and measure == "train":
      _write_losses(path, graph, mesh_impl, losses)
  with lzma.open(path + ".step", "wb") as f:
    f.write(made.module)
  with open(path + ".json", "w", encoding="utf-8") as f:
    json.dump(described, f)


def _lowered(row, config, activations, measure):
  gin_files.parse([config.gin_file], config.bindings + attentions.find_row(
      row).bindings(config.inputs, config.targets) + [_ONE_BATCH])
  mesh_impl = jax_mesh.JaxMeshImpl("all:1", "", ["cpu:0"], seed.numbers_of_names)
  splits.compile_for("gpu")
  built = building.Model(
      (config.vocabulary, config.vocabulary),
      dtype=mtf.VariableDType(tf.float32, tf.float32, tf.as_dtype(activations)))
  result = mtf.anonymize(model.MEASURES[measure](built, config).result)
  lowering = built.lower(mesh_impl)
  lowering.export_to_tf_tensor(result)
  return mesh_impl


def _write_losses(path, graph, mesh_impl, losses):
  """Writes initial values, features and the losses of this processor."""
  with tf.Session(graph=graph) as session:
    session.run(tf.train.get_global_step().initializer)
    for variable in mesh_impl.variables.values():
      session.run(variable.assign(variable.master.initializer.inputs[1]))
    values = {name: v.read() for name, v in mesh_impl.variables.items()}
    features = session.run(mesh_impl.input_tensors)
    step, found = tf.train.get_global_step(), []
    step_up = step.assign_add(1)
    for _ in range(losses):
      session.run(mesh_impl.token)
      found.append(float(mesh_impl.results[0]))
      session.run(step_up)
  np.savez_compressed(
      path + ".npz", losses=found, **{f"state/{k}": v for k, v in values.items()},
      **{f"input/{i}": v for i, v in enumerate(features)})


if __name__ == "__main__":
  main()
