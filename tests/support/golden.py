"""Records what users rely on: names, and small checkpoints with what they compute.

A rearrangement of the code changes none of these records. A new feature adds lines to
the names, and a new notation adds a checkpoint.

  PYTHONPATH=tests python -m support.golden --names=FILE
  PYTHONPATH=tests python -m support.golden --checkpoints=FOLDER --notations=T,R+T
"""

import argparse
import json
import pathlib
import re
import sys

# Comes first, because it makes mesh_tensorflow importable.
import synthesizer_mtf  # noqa: I001  # isort: skip

import gin
import numpy as np
import seqio
from support import cases
from support import models
from support import reference_page
from support import scripts
from support.paths import TESTS
from synthesizer_mtf.attention import notation
import tensorflow.compat.v1 as tf

FOLDER = TESTS / "golden"
NAMES = FOLDER / "names.txt"
NOTATIONS = [*cases.NOTATIONS, *notation.LAYERS]
VOCABULARY = 128
# What a checkpoint is evaluated on: two texts, of which one ends early.
INPUTS = [[5, 90, 31, 7, 110, 2, 1], [83, 42, 1, 0, 0, 0, 0]]
TARGETS = [[9, 17, 101, 1, 0, 0], [44, 31, 125, 77, 6, 1]]
COMMANDS = ("synthesizer_mtf.demo.__main__", *(
    f"synthesizer_mtf.{name}" for name in (
        "tools.average_checkpoints", "tools.benchmark", "tools.best_checkpoint",
        "tools.calibrate", "tools.compare_models", "tools.from_mesh_tensorflow",
        "tools.hugging_face", "tools.inspect_task", "tools.plan_pod",
        "tools.plot_attention", "tools.prepare_studies", "tools.reproduce",
        "tools.train_vocabulary", "tasks.averages", "tasks.submission")))
SUBCOMMANDS = {"synthesizer_mtf.tools.hugging_face": (["import"], ["export"])}


def names():
  """The lines of the record of names: kind, name, and what belongs to it."""
  return list(_names())


def _names():
  yield from _python()
  for signature, _ in reference_page.configurables():
    yield f"gin {signature.strip('`')}"
  for kind, registry in (("task", seqio.TaskRegistry),
                         ("mixture", seqio.MixtureRegistry)):
    yield from (f"{kind} {name}" for name in sorted(registry.names())
                if name.startswith("synth_"))
  yield from _commands()
  for attention in NOTATIONS:
    yield from (f"variable {attention}: {name} {shape}"
                for name, shape in _variables(attention))


def _python():
  return (f"python {name}" for name in synthesizer_mtf.__all__)


def _commands():
  """A line for each flag and argument of each command that argparse reads."""
  for module in COMMANDS:
    for words in SUBCOMMANDS.get(module, ([],)):
      text = scripts.printed_help(module, words, "1000")
      usage = text.partition("\n\n")[0].partition("[-h]")[2]
      for word in re.findall(r"\[[^\]]*\]+|--\S+ \S+|\S+", " ".join(usage.split())):
        yield " ".join(["command", module, *words, word])


def parse(attention):
  """Binds a small model, whose sizes all differ."""
  bound = cases.bindings(attention) if attention in cases.NOTATIONS else []
  models.parse_gin([], [
      "d_model = 8", "d_ff = 12", "num_layers = 1", "num_heads = 3", "d_kv = 4",
      "dropout_rate = 0.0", "Unitransformer.max_length = 16",
      f"encoder/synthesizer_stack.attention = {attention!r}",
      f"decoder/synthesizer_stack.attention = {in_decoder(attention)!r}", *bound])


def in_decoder(attention):
  return "V" if attention == "Linformer" else attention  # It is for encoders alone.


def _variables(attention):
  model, _, _ = _built(attention)
  return sorted((v.name, v.shape.to_integer_list) for v in model.graph.all_variables)


def _built(attention):
  """A small model in its graph, its inputs, and the loss that it computes."""
  gin.clear_config()
  parse(attention)
  m = models.Model(vocabulary=VOCABULARY)
  with m.tf_graph.as_default():
    inputs, targets = m.ids(INPUTS), m.ids(TARGETS)
    _, loss = m.model.call_simple(inputs, targets, True, mode="eval")
  return m, inputs, loss


def evaluate(attention, folder):
  """Returns what a model computes from the variables of its checkpoint.

  Args:
    attention: a name of `NOTATIONS`.
    folder: the folder of the checkpoint.

  Returns:
    a dict with the "loss", a float, and the "ids" that greedy decoding finds.
  """
  model, inputs, loss = _built(attention)
  reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
  with model.tf_graph.as_default():
    with tf.variable_scope("", reuse=True):
      decoded = model.model.decode(inputs, max_decode_length=6)
    (values,), _ = model.run(loss, decoded, values={
        v.name: reader.get_tensor(v.name) for v in model.graph.all_variables})
  loss, ids = values
  return {"loss": float(loss), "ids": ids.tolist()}


def write_checkpoint(attention, folder):
  """Trains a small model for three steps with T5's trainer."""
  gin.clear_config()
  parse(attention)
  with gin.unlock_config():
    gin.bind_parameter("mesh_train_dataset_fn.pack", False)  # As Linformer needs.
  synthesizer_mtf.MtfModel(
      model_dir=str(folder), tpu=None, batch_size=4, iterations_per_loop=1,
      sequence_length={"inputs": 8, "targets": 8}, learning_rate_schedule=0.1,
      model_type="bitransformer", mesh_shape="batch:1", mesh_devices=["cpu:0"],
      seed=1).train(_task(), 3)


def _task():
  """Registers a task of drawn ids, and returns its name."""
  drawn = np.random.RandomState(0).randint(2, VOCABULARY, [64, 2, 8]).astype(np.int32)
  feature = seqio.Feature(seqio.PassThroughVocabulary(VOCABULARY), add_eos=False)
  if "golden" in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove("golden")
  seqio.TaskRegistry.add(
      "golden", seqio.FunctionDataSource(
          lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
              {"inputs": drawn[:, 0], "targets": drawn[:, 1]}), splits=["train"]),
      output_features={"inputs": feature, "targets": feature})
  return "golden"


def main(argv):
  """Writes the records."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--names", type=pathlib.Path, metavar="FILE")
  parser.add_argument("--checkpoints", type=pathlib.Path, metavar="FOLDER")
  parser.add_argument("--notations", type=lambda text: text.split(","),
                      default=NOTATIONS, help="by default all")
  args = parser.parse_args(argv)
  if args.names:
    args.names.write_text("\n".join(names()) + "\n", encoding="utf-8")
  for attention in args.notations if args.checkpoints else []:
    folder = args.checkpoints / attention
    write_checkpoint(attention, folder)
    for path in {*folder.iterdir()} - {*folder.glob("checkpoint"),
                                       *folder.glob("model.ckpt-3.[di]*")}:
      path.unlink()
    (folder / "expected.json").write_text(
        json.dumps(evaluate(attention, folder)) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main(sys.argv[1:])
