"""The README and the pages of `docs/`, taken apart."""

import re
import string

from support.paths import ROOT

PAGES = sorted(str(path.relative_to(ROOT)) for path in [
    *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"`([^`]+)`")


def read(page):
  return (ROOT / page).read_text(encoding="utf-8")


def blocks(page):
  """The blocks of code of a page, as pairs of their language and their text."""
  return _FENCE.findall(read(page))


def prose(page):
  """A page without its blocks of code."""
  return _FENCE.sub("", read(page))


def spans(page):
  """The pieces of code within the prose of a page, without line breaks."""
  return [" ".join(span.split()) for span in _SPAN.findall(prose(page))]


def links(page):
  """The targets of a page's links and pictures."""
  return re.findall(r"\]\(([^)\s]+)\)", _SPAN.sub("", prose(page)))


def anchors(page):
  """What a link to a heading of this page can name after `#`."""
  removed = set(string.punctuation) - set("-_")
  headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
  return ["".join(c for c in heading.lower() if c not in removed).replace(" ", "-")
          for heading in headings]
