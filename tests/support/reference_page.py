"""Makes docs/reference.md from the code: names, parameters, defaults and commands.

  PYTHONPATH=tests python -m support.reference_page --output=docs/reference.md
"""

import argparse
import ast
import importlib
import inspect
import pkgutil
import sys

import gin
from support.paths import ROOT
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import tasks
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import notation

HEAD = """\
# Reference

A script makes this page from the code, and a test compares the two:

```sh
PYTHONPATH=tests python -m support.reference_page --output=docs/reference.md
```

A parameter without a value has no default. The docstring behind a link describes the
parameters. `synthesizer_mesh_transformer` is the installed name of the first command,
and each command has `--help`.

"""
SECTIONS = (
    ("Python", "name in `synthesizer_mtf`"),
    ("Attentions", "name in gin and in `attention_layer`"),
    ("Parameters in gin", "name in gin"),
    ("Commands", "module, to start with Python's `-m`"))


def page():
  """The text of the page."""
  rows = (_python(), _attentions(), configurables(), _commands())
  return HEAD + "\n".join(
      f"## {title}\n\n| {column} | |\n|---|---|\n" + "".join(
          f"| {name} | {text} |\n" for name, text in entries)
      for (title, column), entries in zip(SECTIONS, rows))


def _python():
  """(signature, sentence) of each public name of the package, and of two helpers."""
  public = {name: getattr(synthesizer_mtf, name) for name in synthesizer_mtf.__all__}
  public["gin_files.add_search_path"] = gin_files.add_search_path
  public["gin_files.parse"] = gin_files.parse
  for name, value in public.items():
    yield _signature(name, _original(value)), _described(_original(value))


def _attentions():
  """(notation, class) of each synthesizing function and each whole layer."""
  for name, cls in {**functions.SYNTHESIZING_FUNCTIONS, **notation.LAYERS}.items():
    mixes = ", mixes with others" if name in functions.SYNTHESIZING_FUNCTIONS else ""
    yield f"`{name}`", f"`{cls.__name__}`{mixes}"


def configurables():
  """(signature, sentence) of everything that this package registers with gin."""
  for module in pkgutil.iter_modules(tasks.__path__, "synthesizer_mtf.tasks."):
    importlib.import_module(module.name)  # Some only register with a gin file.
  for selector, configurable in _registered():
    if (selector.startswith("synthesizer_mtf.") and
        not selector.startswith("synthesizer_mtf.tools.")):  # The benchmark's own.
      short = selector.removeprefix("synthesizer_mtf.")
      name = selector if short.startswith("tasks.") else short
      yield _signature(name, configurable.wrapped), _described(configurable.wrapped)


def _registered():
  """(selector, configurable) of what this package, and no test, tells gin, sorted."""
  ours = [(selector, configurable)
          for selector, configurable in gin_internals.registry().items()
          if configurable.wrapped.__module__.startswith("synthesizer_mtf.")]
  return sorted(ours, key=lambda pair: pair[0])


def _commands():
  """(module, sentence) of each module that a user starts."""
  yield "`synthesizer_mtf`", _linked_doc("synthesizer_mtf/launcher.py")
  yield "`synthesizer_mtf.demo`", _linked_doc("synthesizer_mtf/demo/__init__.py")
  for folder in ("tools", "tasks"):
    for path in sorted([*(ROOT / folder).glob("*.py"),
                        *(ROOT / folder).glob("*/__main__.py")]):
      text = path.read_text(encoding="utf-8")
      if 'if __name__ == "__main__"' in text and "def main(" in text:
        name = path.relative_to(ROOT).with_suffix("")
        name = name.parent if path.stem == "__main__" else name
        yield (f"`synthesizer_mtf.{'.'.join(name.parts)}`",
               _linked_doc(str(path.relative_to(ROOT))))


def _original(value):
  """What gin wraps, or the value itself."""
  return {ours.wrapper: ours.wrapped for _, ours in _registered()}.get(value, value)


def _signature(name, value):
  parameters = inspect.signature(value).parameters.values()
  return f"`{name}({', '.join(map(_parameter, parameters))})`"


def _parameter(parameter):
  default = parameter.default
  if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
    return str(parameter).partition(":")[0]
  if default is parameter.empty or default is gin.REQUIRED:
    return parameter.name
  shown = getattr(default, "__name__", None) or repr(default)
  return f"{parameter.name}={shown}"


def _described(value):
  """The first sentence of a docstring, with a link to its file.

  A private function only holds parameters. Its module's docstring describes them.
  """
  where = value.__module__.removeprefix("synthesizer_mtf.")
  folder = "" if where.startswith("tasks.") else "synthesizer_mtf/"
  path = f"{folder}{where.replace('.', '/')}.py"
  if value.__name__.startswith("_"):
    return _linked_doc(path)
  return _linked(inspect.getdoc(value), path)


def _linked_doc(path):
  """The first sentence of a module's docstring, with a link to the module."""
  text = (ROOT / path).read_text(encoding="utf-8")
  return _linked(ast.get_docstring(ast.parse(text)), path)


def _linked(doc, path):
  sentence = doc.partition("\n")[0].replace("|", "\\|")
  return f"{sentence} [{path.rpartition('/')[2]}](../{path})"


def main(argv):
  """Writes the page."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--output", required=True, help="the file to write")
  args = parser.parse_args(argv)
  (ROOT / args.output).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
  main(sys.argv[1:])
