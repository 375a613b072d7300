"""Parses the README, the pages of `docs/`, and those of `studies/`."""

import re
import string

from support.paths import ROOT

PAGES = sorted(str(path.relative_to(ROOT)) for path in [
    *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
OF_STUDIES = sorted(
    str(path.relative_to(ROOT)) for path in ROOT.glob("studies/**/*.md"))

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"`([^`]+)`")


def read(page):
  return (ROOT / page).read_text(encoding="utf-8")


def blocks(page):
  """The code blocks of a page, as pairs (language, text)."""
  return _FENCE.findall(read(page))


def prose(page):
  """The text of a page without its code blocks."""
  return _FENCE.sub("", read(page))


def spans(page):
  """The code spans in the prose of a page, without line breaks."""
  return [" ".join(span.split()) for span in _SPAN.findall(prose(page))]


def links(page):
  """The targets of a page's links and pictures."""
  return re.findall(r"\]\(([^)\s]+)\)", _SPAN.sub("", prose(page)))


def anchors(page):
  """The anchors of a page's headings, which links name after `#`."""
  removed = set(string.punctuation) - set("-_")
  headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
  return ["".join(c for c in heading.lower() if c not in removed).replace(" ", "-")
          for heading in headings]
