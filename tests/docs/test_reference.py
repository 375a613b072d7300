"""docs/reference.md says what the code says."""

from support import documents
from support import reference_page


def test_the_reference_is_what_the_code_says():
  assert documents.read("docs/reference.md") == reference_page.page()


def test_the_reference_has_parameters_defaults_and_commands():
  page = reference_page.page()
  assert "`attention_layer(notation, **kwargs)`" in page
  assert "`FactorizedRandomLogits(max_length=512, rank=8, " in page
  assert "`synthesizer_mtf.tools.plan_pod`" in page
