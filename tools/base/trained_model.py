"""Finds the trained model that a tool reads: flags, checkpoint and configuration."""

import argparse

from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.command import precedence
import tensorflow.compat.v1 as tf


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags for the checkpoint of a folder, and for its model."""
  parser.add_argument("--step", type=int, metavar="N",
                      help="of the checkpoint (default: last)")
  arguments.add_gin(parser, "more gin files, which win over operative_config.gin",
                    "more bindings, as for the trainer, which win over both")


def configure(model_dir: str, args: argparse.Namespace) -> tuple[str, int]:
  """Fills gin with the configuration of a trained model, as the flags say.

  Args:
    model_dir: the folder of the checkpoints.
    args: the values of the flags that `add_flags` adds.

  Returns:
    (path, step) of the checkpoint.

  Raises:
    ValueError: there is no such checkpoint or no gin file, or the last checkpoint is
      damaged.
  """
  path = find_checkpoint(model_dir, args.step)
  folder = precedence.Folder(model_dir)
  if not (args.gin_file or tf.io.gfile.exists(folder.record)):
    raise checks.Error(
        f"{checks.called('--model_dir')} is {model_dir!r} but holds no "
        "operative_config.gin; name the folder that the trainer wrote, or gin files "
        "with --gin_file.")
  gin_files.parse(args.gin_file, args.gin_param)
  precedence.settle([folder])
  return path, complete.saved_step(path)


def find_checkpoint(model_dir: str, step: int | None) -> str:
  """Returns the path of the checkpoint of a step; of the last one if None.

  Raises:
    ValueError: there is no such checkpoint, or the last one is damaged.
  """
  path = complete.latest(model_dir) if step is None else None
  if path is None and not complete.find(model_dir):
    raise checks.Error(
        f"{checks.called('--model_dir')} is {model_dir!r} but holds no checkpoint, "
        "model.ckpt-*.index; name one that the trainer wrote.")
  if step is not None:
    path, = complete.at_steps(model_dir, step, "--step")
  assert path is not None
  return path
