"""Trains tiny models by `torch_training.py`; a Python with PyTorch runs this file.

  python train_tiny.py FOLDER

FOLDER has `rows/`, `r/`, `spiece.model` and `sizes.json`, which differ from `SIZES`.
The trainings are `whole/`, `killed/`, which ends after its first validation and goes
on, and `recovery.jsonl`, whose second command leaves out what the first one did.
"""

import json
import pathlib
import sys
from unittest import mock

import torch

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "studies" / "calibration"))
import torch_training  # noqa: E402 (it is no package here)


class Killed(BaseException):
  """What ends a training."""


def save_and_die(*args, save=torch.save):
  save(*args)
  raise Killed


def run(*words):
  with mock.patch.object(sys, "argv", ["torch_training.py", *map(str, words)]):
    torch_training.main()


def main(folder):
  torch.set_num_threads(1)
  torch_training.SIZES.update(json.loads((folder / "sizes.json").read_text()))
  config = json.loads((folder / "r" / "config.json").read_text())
  common = [f"--rows={folder}/rows", "--batch=3", "--evaluated=4"]

  def pretrain(name):
    run("pretrain", *common, f"--spiece={folder}/spiece.model", "--steps=6",
        "--looks=3", f"--output={folder / name}",
        f"--vocabulary={config['vocab_size']}")

  pretrain("whole")
  try:
    with mock.patch.object(torch, "save", save_and_die):
      pretrain("killed")
  except Killed:
    print("killed", flush=True)
  pretrain("killed")
  for starts in (["calibrated"], ["V", "calibrated", "annealed", "scratch"]):
    run("recover", *common, f"--v={folder}/whole", f"--r={folder}/r",
        f"--output={folder}/recovery.jsonl", "--steps", 2, "--seeds", 1, 2,
        "--starts", *starts)


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
