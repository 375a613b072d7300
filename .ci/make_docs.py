"""Runs the notebooks of docs/, and makes the site of all pages.

    make docs

The pages link to each other and to source files by paths in the repository. So the
site is made from a folder of links that looks like the repository, and each link leads
somewhere on the site, too. mkdocs checks links and anchors of pages, and this script
those of the finished site. Nothing is read from the network.
"""

import argparse
import html.parser
from importlib import metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
from urllib import parse

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build/site_source", ROOT / "build/site"
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE",
         "CITATION.cff", "docs", "studies"]
CODE = ["gin", "synthesizer_mtf", "tasks", "tests", "tools"]
LEFT_OUT = shutil.ignore_patterns("__pycache__")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--skip_notebooks", action="store_true",
                      help="show the notebooks' saved output")
  parser.add_argument("--save", action="store_true",
                      help="write the notebooks' new output into docs/notebooks")
  args = parser.parse_args()
  lay_out()
  for path in [] if args.skip_notebooks else NOTEBOOKS:
    run(path, SOURCE / path.relative_to(ROOT))
    if args.save:
      shutil.copy(SOURCE / path.relative_to(ROOT), path)
  for path in NOTEBOOKS:
    link_to_pages(SOURCE / path.relative_to(ROOT))
  shutil.rmtree(SITE, ignore_errors=True)
  name = f"synthesizer_mtf {metadata.version('synthesizer-mtf')}"
  subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"],
                 cwd=ROOT, check=True,
                 env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_NAME": name})
  broken = broken_links(SITE)
  if broken:
    sys.exit("Broken links:\n" + "\n".join(broken))
  print(f"The site is {SITE.relative_to(ROOT)}/index.html: "
        f"{len(list(SITE.rglob('*.html')))} pages.")


def lay_out() -> None:
  """Copies what pages link to into the folder that mkdocs reads."""
  shutil.rmtree(SOURCE, ignore_errors=True)
  SOURCE.mkdir(parents=True)
  for name in PAGES + CODE:
    path = ROOT / name
    if path.is_dir():
      shutil.copytree(path, SOURCE / name, ignore=LEFT_OUT)
    else:
      shutil.copy(path, SOURCE)


def run(path: pathlib.Path, output: pathlib.Path) -> None:
  """Runs a notebook in a new folder, and writes it with its output."""
  notebook = nbformat.read(path, as_version=4)
  folder = SOURCE.parent / "notebooks" / path.stem
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  print(f"Running {path.relative_to(ROOT)} ...", flush=True)
  nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3",
                          resources={"metadata": {"path": str(folder)}}).execute()
  text = nbformat.writes(notebook).replace(f"{folder.resolve()}/", "")
  output.write_text(re.sub(r"/[\w./-]+/site-packages/", "", text), encoding="utf-8")


def link_to_pages(path: pathlib.Path) -> None:
  """Lets a notebook's links lead to pages of the site, as mkdocs does for pages."""
  text = path.read_text(encoding="utf-8")
  path.write_text(re.sub(r"(\]\([^)\s]*)\.md\b", r"\1.html", text), encoding="utf-8")


class _Links(html.parser.HTMLParser):
  """The links and the anchors of a page."""

  def __init__(self, text):
    super().__init__()
    self.links, self.anchors = [], {""}
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    found = dict(attrs)
    self.anchors |= {found.get("id") or "", found.get("name") or ""}
    link = found.get("href") if tag in ("a", "link") else found.get("src")
    if link:
      self.links.append((tag, link))


def broken_links(site: pathlib.Path) -> list[str]:
  """Returns a line for each link without a target, and each request elsewhere."""
  pages = {path.resolve(): _Links(path.read_text(encoding="utf-8"))
           for path in site.rglob("*.html") if path.name != "404.html"}
  broken = []
  for page, found in pages.items():
    for tag, link in found.links:
      parts = parse.urlsplit(link)
      if parts.scheme or parts.netloc:
        if tag != "a" and parts.scheme != "data":
          broken.append(f"{page.relative_to(site)}: {tag} asks {link}")
        continue
      target = (page.parent / parse.unquote(parts.path)).resolve() if (
          parts.path) else page
      if not target.is_file() or (target in pages and parse.unquote(
          parts.fragment) not in pages[target].anchors):
        broken.append(f"{page.relative_to(site)}: {link}")
  return sorted(set(broken))


if __name__ == "__main__":
  main()
