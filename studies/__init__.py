"""The research record: studies of attentions, with their tasks, gin files and results.

It is in the repository, but not in an installed package. Importing it registers its
tasks with seqio, and lets gin find its files. `--module_import=studies` does this in a
command.

  run.py        runs studies and draws them; prints tables of other papers
  prepare.py    makes the data of studies of real text
  catalogue.py  the studies: rows, tasks, scores, with the types of `tools/experiments`
  ability_study.py, ability_heads.py, ability_lengths.py  the studies of abilities
  length_studies.py  the studies of tilings and of tables that grow
  heat_map.py, size_curves.py  the pictures of the studies of abilities
  gpu_prepare.py, gpu_runs.py  long runs of several attentions on a GPU
  float32_loss.py  their loss
  fnet.py, uniform_cross_attention.py  layers of studies
  controls.py  Frozen-QK and MixiT, which register themselves
  published.py     tables of other papers, which are in lra.py and narang.py
  tasks/, gin/, results/, tests/
"""

import pathlib

from studies import fnet
from studies import tasks
from studies import uniform_cross_attention
from synthesizer_mtf import gin_files

gin_files.add_folder(str(pathlib.Path(__file__).resolve().parent / "gin"))
