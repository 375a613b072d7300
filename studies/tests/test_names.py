"""What studies/ registers, and what its pages say."""

import inspect
import re

import pytest
import seqio
from studies import catalogue
from studies import published
from support import documents
from support import models
from support import reference_page
from support import shell
from support.paths import ROOT
from synthesizer_mtf import gin_internals
from synthesizer_mtf.tools import recipes
from synthesizer_mtf.tools import reproduce

PAGES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("studies/**/*.md"))


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


def test_links_of_pages_lead_somewhere():
  for page in PAGES:
    for link in documents.links(page):
      path, _, anchor = link.partition("#")
      target = ((ROOT / page).parent / path if path else ROOT / page).resolve()
      assert link.startswith("https://") or target.exists(), (page, link)
      if anchor and target.exists():
        assert anchor in documents.anchors(str(target.relative_to(ROOT))), (page, link)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_bindings_of_a_page_parse(page):
  texts = [text for language, text in documents.blocks(page) if language == "sh"]
  spans = [span for span in documents.spans(page) if span.startswith("python ")]
  for words in shell.commands("\n".join(texts + spans)):
    if words[2].endswith(("reproduce", "studies.run")):
      reproduce._parse(words[3:])
    else:
      models.parse_gin(recipes.values(words, "gin_file"),
                       recipes.values(words, "gin_param"))
  for span in documents.spans(page):
    if re.fullmatch(r"[\w./]+ = [^=]+", span) and "…" not in span:
      models.parse_gin((), [span])
