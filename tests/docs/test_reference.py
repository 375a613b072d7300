"""docs/reference.md agrees with the code, and has all names of the record of names."""

from support import documents
from support import golden
from support import reference_page


def test_the_reference_agrees_with_the_code():
  assert documents.read("docs/reference.md") == reference_page.page()


def test_the_reference_has_all_names_parameters_defaults_and_commands_of_the_record():
  text = documents.read("docs/reference.md")
  shown = {"python": "`{}(", "gin": "`{}{}`", "command": "`{}`"}
  for line in golden.NAMES.read_text(encoding="utf-8").splitlines():
    kind, name, *rest = line.split(" ", 2)
    if kind in shown:
      assert shown[kind].format(
          name.removesuffix(".__main__"), " ".join(["", *rest])) in text, line
  assert "`synthesizer_mtf.tasks.word_perplexity(" in text
