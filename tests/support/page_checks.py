"""Checks what a page says: its links, names, bindings and commands."""

import argparse
import copy
import functools
import importlib
import importlib.util
import itertools
import pathlib
import re

from absl import flags
import gin
import pkg_resources
import pytest
import seqio
from support import documents
from support import models
from support import scripts
from support import shell
from support.paths import ROOT
from synthesizer_mtf import launcher  # It also defines the flags.
from synthesizer_mtf.tools.base import recipes

GIN_FOLDERS = (
    ROOT / "gin", ROOT / "studies/gin",
    pathlib.Path(pkg_resources.resource_filename("t5.models", "gin")))

# Files that a command writes, or that a user brings.
MADE = re.compile(
    r"(build|demo_output|dist|reproduce_output|pictures|exported)/|(operative_config|stock_t5)\.gin$|"
    r"^table4\.md$|^(train|valid|test)_.*\.txt$|\.jsonl$|^names\.|^my_attention\.py$")
FOREIGN = ("apt-get", "cat", "curl", "cut", "docker", "done;", "find", "for", "grep",
           "head", "pip", "printf", "train", "train()", "}")
TOOL = re.compile(r"(?<!tests/)\btools[/.]([a-z_]+)\b(?!/)")
TOOLS = sorted({f"synthesizer_mtf.tools.{name}" for page in documents.PAGES
                for name in TOOL.findall(documents.read(page))})


def check(page):
  """Fails if a link, a name, a block of code or a command of a page is wrong."""
  for link in documents.links(page):
    assert leads_somewhere(page, link), link
  for language, text in documents.blocks(page):
    CHECKS[language](text)
  for span in documents.spans(page):
    if re.match(r"(make|(\.venv/bin/)?python|synthesizer_mesh_transformer) ", span):
      check_command(shell.commands(span)[0])
    elif span.startswith("--"):
      check_flags(shell.commands(span)[0])
    elif not page.startswith("studies/"):  # They name files of their runs.
      check_name(span)


def leads_somewhere(page, link):
  """Whether the file of a link and its anchor exist; the network is not asked."""
  if link.startswith("https://"):
    return True
  path, _, anchor = link.partition("#")
  target = (ROOT / page).parent / path if path else ROOT / page
  return target.exists() and (not anchor or anchor in documents.anchors(
      str(target.resolve().relative_to(ROOT))))


def check_name(span):
  """Checks a file, a binding or a parameter that the text names."""
  if is_file_name(span):
    assert MADE.search(span) or all(map(exists, alternatives(span))), span
  elif re.fullmatch(r"[\w./]+ = [^=]+", span) and "…" not in span:
    models.parse_gin((), [span])
  elif re.fullmatch(r"[\w./]+\.\w+", span):
    check_parameter(span)


def is_file_name(span):
  """Whether a span looks like a file or a folder of the repository."""
  if not re.fullmatch(r"[\w./+*{},-]+", span) or span.startswith(
      "synthesizer_mtf."):  # A module.
    return False
  folders = [path.name for path in ROOT.iterdir() if path.is_dir()]
  return (span.endswith(("/", ".gin", ".py", ".md", ".toml", ".png")) or
          span.partition("/")[0] in folders and "/" in span)


def alternatives(span):
  """The names that `{a,b}` stands for, with a star for words in capitals."""
  pieces = [piece[1:-1].split(",") if piece[0] == "{" else [piece]
            for piece in re.findall(r"\{[^}]*\}|[^{]+", span)]
  return [re.sub(r"\b[A-Z]{3,}(?=\.)", "*", "".join(name))
          for name in itertools.product(*pieces)]


def exists(name):
  """Whether there is a file, a folder or a module of this name."""
  roots = [ROOT, ROOT / "synthesizer_mtf"]
  if name.endswith(".gin"):
    roots += GIN_FOLDERS
  return name in _modules() or any(
      any(root.glob(name.rstrip("/"))) for root in roots)


@functools.cache
def _modules():
  """The names of the repository's modules, without those of hidden environments."""
  return {path.name for folder in ROOT.glob("[!.]*/") for path in folder.rglob("*.py")}


def check_parameter(span):
  """If gin knows X of `X.y`, y must be a parameter or an attribute of X."""
  selector, _, name = span.rpartition("/")[2].rpartition(".")
  if selector == "synthesizer_mtf" and name not in ("runtime", "tf32"):
    return  # Not the parameters of this name, but the package.
  try:
    configurable = gin.get_configurable(selector)
  except ValueError:
    assert not selector[:1].isupper(), span
    return
  if not hasattr(configurable, name):
    gin.clear_config()
    gin.bind_parameter(span, None)


def check_commands(text):
  for command in shell.commands(text):
    check_command(command)


# How to check a block of code, by its language. A page may use no other.
CHECKS = {
    "sh": check_commands,
    "gin": lambda text: models.parse_gin((), [text]),
    "python": lambda text: compile(text, "a page", "exec"),
    "text": str, "toml": str}


def check_command(words):
  """Fails unless the program's parser accepts the arguments."""
  program, *arguments = words
  program = program.removeprefix(".venv/bin/")
  if program == "make":
    check_targets(arguments)
  elif program in ("synthesizer_mesh_transformer", "t5_mesh_transformer"):
    check_launcher(arguments)
  elif program == "python":
    check_python(arguments)
  else:
    assert program in FOREIGN, words


def check_flags(words):
  """Checks flags without a command: some command has them, and gin parses them."""
  for word in words:
    assert not word.startswith("--") or word.partition("=")[0] in known_flags()
  models.parse_gin(recipes.values(words, "gin_file"), [
      "MIXTURE_NAME = None", *recipes.values(words, "gin_param")])


def check_targets(arguments):
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  for name in arguments:
    assert re.search(rf"^{name.partition('=')[0]}( \?=|:)", makefile, re.M), name


def check_launcher(arguments):
  """Checks that flags parse, and that gin parses the bindings and existing files."""
  parsed = copy.deepcopy(flags.FLAGS)
  assert parsed(["", *map(launcher.as_read, arguments)]) == [""]
  assert parsed.model_dir
  given = parsed.gin_file or []  # The flags of T5's model API need none.
  for module in parsed.module_import:
    importlib.import_module(module)
  files = [file for file in given if not MADE.search(file)]
  trained = any("operative_config" in file for file in given)
  models.parse_gin(files, ["MIXTURE_NAME = 'synth_text_pairs'"] * trained + (
      parsed.gin_param or []))
  if "MIXTURE_NAME" in gin.config_str():
    assert seqio.get_mixture_or_task(gin.query_parameter("%MIXTURE_NAME"))


def check_python(arguments):
  """Runs a command of ours up to where it has parsed its flags."""
  first, *rest = arguments
  if first == "-m":
    first, *rest = rest
  first = re.sub(r"^tools/(\w+)\.py$", r"synthesizer_mtf.tools.\1", first)
  if first == "pytest":
    for path in rest:
      assert not path.startswith("tests") or (ROOT / path).exists(), path
  elif first == "synthesizer_mtf.tasks.cache":
    check_source_flags("seqio.scripts.cache_tasks_main", rest)
  elif first == "synthesizer_mtf" and rest:
    check_launcher(rest)
  elif (ROOT / first).is_file():  # It needs another environment.
    text = (ROOT / first).read_text(encoding="utf-8")
    for argument in rest:
      assert not argument.startswith("--") or argument.partition("=")[0] in text
  elif first.startswith(("synthesizer_mtf.", "studies.", "support.")):
    parser = parser_of(first)
    if rest != ["--help"]:
      parser.parse_args(rest)
  else:
    assert first in ("nltk.downloader", "synthesizer_mtf", "venv"), first


def check_source_flags(module, arguments):
  """Finds flags in the source; the module cannot be imported beside T5's main."""
  source = importlib.util.find_spec(module).origin
  text = pathlib.Path(source).read_text(encoding="utf-8")
  for argument in arguments:
    name = argument.partition("=")[0].removeprefix("--")
    assert re.search(rf"DEFINE_\w+\(\s*\"{name}\"", text), argument


class StopError(Exception):
  """Ends a command once it has made its parser; holds the parser."""


@functools.cache
def parser_of(module):
  """The parser that a command makes for its flags."""
  def stop(parser, *args, **kwargs):
    raise StopError(parser)

  gin.clear_config()  # Otherwise gin takes no new configurables.
  command = scripts.command(module)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(StopError) as stopped:
      command.main([])
  return stopped.value.args[0]


def known_flags():
  """The flags of the launcher, of the tools, and of what left them for studies/."""
  of_tools = "".join(help_of(parser_of(module)) for module in (
      *TOOLS, "studies.calibration.worth", "studies.peers"))
  return {f"--{name}" for name in flags.FLAGS} | set(
      re.findall(r"--\w+", of_tools))


def help_of(parser):
  """The help of a command and of its subcommands."""
  inner = [other for action in parser._actions
           if isinstance(action, argparse._SubParsersAction)
           for other in action.choices.values()]
  return parser.format_help() + "".join(map(help_of, inner))
