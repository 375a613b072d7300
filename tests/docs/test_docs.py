"""Names in the README and in `docs/` exist, and the commands there parse."""

import re

import gin
import pytest
from support import documents
from support import golden
from support import own_attention
from support import page_checks
from support import processes
from support import reference_page
from support.paths import ROOT


def test_the_readme_and_how_to_contribute_stay_short():
  assert len(documents.read("README.md").splitlines()) <= 200
  assert len(documents.read("CONTRIBUTING.md").splitlines()) <= 80


def test_the_readme_leads_to_every_page():
  assert set(documents.PAGES) - {"README.md"} <= set(documents.links("README.md"))


def test_pages_do_not_train_in_the_same_folder():
  pages = {}
  for page in documents.PAGES:
    for folder in re.findall(
        r"model_dir=\"?([\w/.+]*/[\w/.+]+)", documents.read(page)):
      pages.setdefault(folder, set()).add(page)
  trained = {folder: of for folder, of in pages.items()
             if not re.match("(demo|reproduce)_output", folder)}
  assert len(trained) > 4 and all(len(of) == 1 for of in trained.values()), trained


def test_the_map_shows_every_room():
  rooms = {f"{path.parent.relative_to(ROOT)}/"
           for path in (ROOT / "synthesizer_mtf").glob("*/**/*.py")
           if not any(folder.is_symlink() for folder in path.parents)}
  assert rooms and rooms <= set(documents.spans("docs/architecture.md"))


def test_the_map_shows_every_hook_of_gin():
  hooks = {hook.__name__ for hook in gin.config._FINALIZE_HOOKS
           if hook.__module__.startswith("synthesizer_mtf.")}
  assert hooks and hooks == set(re.findall(
      r"^          \w+\.(\w+)  ", documents.read("docs/command_way.md"), re.MULTILINE))


@pytest.fixture(scope="module")
def module_of_the_page(tmp_path_factory):
  """The module that the page on variants shows can be imported."""
  with own_attention.in_folder(tmp_path_factory.mktemp("module")):
    yield


@pytest.mark.usefixtures("module_of_the_page")
@pytest.mark.parametrize("page", documents.PAGES)
def test_links_names_and_code_of_a_page_are_right(page):
  page_checks.check(page)


def test_pages_that_files_name_exist():
  files = [path for folder in ("gin", "synthesizer_mtf", "tasks", "tools")
           for path in (ROOT / folder).rglob("*.*")
           if path.suffix in (".gin", ".py")]
  named = {page for path in files for page in re.findall(
      r"\bdocs/\w+\.md", path.read_text(encoding="utf-8"))}
  assert "docs/clusters.md" in named
  assert named <= set(documents.PAGES)


def test_the_reference_agrees_with_the_code():
  # In this process, other tests may have registered more.
  assert documents.read("docs/reference.md") == processes.call(reference_page.page)


def test_the_reference_has_all_names_parameters_defaults_and_commands_of_the_record():
  text = documents.read("docs/reference.md")
  shown = {"python": "`{}(", "gin": "`{}{}`", "command": "`{}`"}
  for line in golden.NAMES.read_text(encoding="utf-8").splitlines():
    kind, name, *rest = line.split(" ", 2)
    if kind in shown:
      assert shown[kind].format(
          name.removesuffix(".__main__"), " ".join(["", *rest])) in text, line
  assert "`synthesizer_mtf.tasks.word_perplexity(" in text
