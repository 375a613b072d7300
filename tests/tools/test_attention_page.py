"""The interactive page: its content, and that it fetches nothing."""

import html.parser
import re
import sys

import numpy as np
import pytest
from support import pages
from synthesizer_mtf.tools.plot_attention import page
import tensorflow.compat.v1 as tf


@pytest.fixture
def shown():
  return pages.example()


def test_each_part_has_its_own_alpha_even_if_two_share_a_name(shown):
  encoder, decoder = page.content(*shown)["layers"]
  assert "alpha" not in encoder and "course" not in encoder
  assert [part["name"] for part in decoder["parts"]] == ["R", "R.1"]
  assert decoder["alpha"] == {"initial": [[.5, .5], [.5, .5]],
                              "trained": [[.2, .8], [.6, .4]]}
  assert decoder["course"] == {
      "steps": [0, 5], "alpha": [[[.5, .5], [.5, .5]], [[.2, .8], [.6, .4]]],
      "means": [[[1, 5], [.5, .4]], [[], []]]}


class _Tags(html.parser.HTMLParser):
  """Collects the tags of a page with their attributes."""

  def __init__(self, text):
    super().__init__()
    self.tags = []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))


def test_tokens_and_names_are_text_and_nothing_is_fetched(shown):
  text = page.render(page.content(*shown))
  tags = _Tags(text).tags
  names = [tag for tag, _ in tags]
  assert names.count("script") == 3 and not {"b", "i"} & {*names}
  data = pages.parse(text)
  assert data["layers"][0]["tokens"] == pages.TOKENS
  assert data["layers"][1]["tokens"] == [None] * 5
  assert data["about"] == pages.ABOUT
  policies = [attributes["content"] for tag, attributes in tags
              if attributes.get("http-equiv") == "Content-Security-Policy"]
  assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]
  assert "http" not in policies[0]
  assert not [tag for tag, attributes in tags
              if {"src", "href", "action", "data", "srcset"} & set(attributes)]
  assert not {"link", "iframe", "img", "base"} & {*names}


def test_plotly_is_in_the_page_and_so_is_all_that_its_script_asks_for(shown):
  text = page.render(page.content(*shown))
  assert sys.modules["plotly.offline"].get_plotlyjs() in text
  ids = {attributes.get("id") for _, attributes in _Tags(text).tags}
  script = text.rpartition("<script>")[2]
  asked = set(re.findall(r'element\("(\w+)"\)', script))
  asked |= set(re.findall(r'Plotly\.react\("(\w+)"', script))
  assert {"maps", "stack", "layer", "head", "course"} < asked <= ids


def test_a_page_that_cannot_be_finished_leaves_the_old_one(
    shown, tmp_path, monkeypatch):
  path = tmp_path / "page.html"
  path.write_text("old")

  def write_half(name, text):
    with open(name, "w") as f:
      f.write(text[:1000])
    raise tf.errors.ResourceExhaustedError(None, None, "the disk is full")

  monkeypatch.setattr(page, "_write", write_half)
  with pytest.raises(ValueError, match="cannot be written: the disk is full. Name"):
    page.write(str(path), *shown)
  assert path.read_text() == "old"
  assert [path_.name for path_ in tmp_path.iterdir()] == ["page.html"]
  monkeypatch.undo()
  page.write(str(path), *shown)
  assert pages.data(path)["about"] == pages.ABOUT
  assert [path_.name for path_ in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("name, message", [
    ("page.htm", "page.htm' but must end in .html; name"),
    ("folder.html", "folder.html', which is a folder; name a file"),
    ("file/page.html", "file/page.html', which cannot be written: ")])
def test_an_impossible_path_is_refused_and_a_possible_one_left_as_it_is(
    tmp_path, name, message):
  (tmp_path / "folder.html").mkdir()
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=message):
    page.check(str(tmp_path / name))
  (tmp_path / "old.html").write_text("old")
  page.check(str(tmp_path / "old.html"))
  page.check(str(tmp_path / "new" / "page.html"))
  assert (tmp_path / "old.html").read_text() == "old"
  assert not list((tmp_path / "new").iterdir())


def test_without_plotly_one_sentence_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "plotly.offline", None)
  with pytest.raises(ValueError) as error:
    page.check(str(tmp_path / "page.html"))
  assert str(error.value) == (
      "--html needs plotly, which is not installed; install synthesizer-mtf's "
      "extra named page, by pip install '.[page]' in its checkout.")


def test_a_page_too_large_for_browsers_says_what_to_leave_out(shown):
  layers, states, courses, about = shown
  huge = np.broadcast_to(np.float32(0), (12, 2048, 2048))
  states["trained"]["encoder/0"].weights = huge
  with pytest.raises(ValueError, match="a page of 134 MB, more than 100; choose "
                                       "some layers with --layers, or fewer"):
    page.content(layers, states, courses, about)
