"""docs/reference.md agrees with the code."""

import subprocess
import sys

from support import documents
from support.paths import ROOT


def test_the_reference_agrees_with_the_code(tmp_path):
  # In this process, other tests may have registered more configurables.
  subprocess.run([sys.executable, "-m", "support.reference_page",
                  f"--output={tmp_path / 'page.md'}"], cwd=ROOT / "tests", check=True)
  page = (tmp_path / "page.md").read_text(encoding="utf-8")
  assert documents.read("docs/reference.md") == page


def test_the_reference_has_parameters_defaults_and_commands():
  page = documents.read("docs/reference.md")
  assert "`attention_layer(notation, **kwargs)`" in page
  assert "`FactorizedRandomLogits(max_length=512, rank=8, " in page
  assert "`synthesizer_mtf.tools.plan_pod`" in page
  assert "`synthesizer_mtf.tasks.word_perplexity(" in page
