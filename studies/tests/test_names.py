"""What studies/ registers, and what its pages say."""

import inspect
import re

import pytest
import seqio
from studies import catalogue
from studies import published
from support import documents
from support import page_checks
from support import reference_page
from support.paths import ROOT
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.tools import reproduce


def test_the_package_names_what_it_hands_over():
  assert reproduce.STUDIES == tuple(sorted(catalogue.STUDIES))
  assert reproduce.OTHER_PAPERS == tuple(published.TABLES)


def test_tasks_and_parameters_are_those_of_the_reference():
  """Users' files and checkpoints hold these names, so lines may only be added."""
  found = [f"* `{name}`" for name in sorted(seqio.TaskRegistry.names())
           if name.startswith(("synth_ability_", "synth_lra_"))]
  for selector, configurable in sorted(gin_internals.registry().items()):
    if configurable.wrapped.__module__.startswith("studies."):
      made = configurable.wrapped
      of = inspect.getmodule(made) if made.__name__.startswith("_") else made
      doc = inspect.getdoc(of).partition("\n")[0]
      found.append(f"| {reference_page._signature(selector, made)} | {doc} |")
  assert [line for line in documents.read("studies/reference.md").splitlines()
          if line.startswith(("| `", "* `"))] == found


def test_every_gin_file_of_studies_passes():
  paths = [*(ROOT / "studies/gin").rglob("*.gin")]
  assert len(paths) > 20
  macros = {name for path in paths for name in re.findall(
      r"%([A-Za-z]\w+)\b(?!\.)", path.read_text())}
  for path in paths:
    gin_files.check([str(path)], ["MIXTURE_NAME = 'x'", *(
        f"{name} = 1" for name in macros)])


@pytest.mark.parametrize("page", documents.OF_STUDIES)
def test_links_names_and_code_of_a_page_are_right(page):
  page_checks.check(page)
