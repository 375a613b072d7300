"""What to do about messages of others which do not say so themselves."""

import difflib
import inspect
import pathlib
import re

import gin
import seqio
from synthesizer_mtf import gin_files
import t5.models


def remedy(sentence):
  """Says which names there are in the place of a wrong one, or what to do.

  Args:
    sentence: the message of an exception of gin, seqio or TensorFlow.

  Returns:
    the end of a sentence, or "".
  """
  for pattern, names_of in _NAMES.items():
    match = re.search(pattern, sentence)
    if match:
      return _suggest(match.groups()[-1], sorted(set(names_of(match))))
  return next((f"; {what}." for text, what in _REMEDIES.items()
               if text in sentence), "")


def _suggest(wrong, names):
  near = difflib.get_close_matches(wrong, names, n=3)
  if near:
    return f" Did you mean {' or '.join(near)}?"
  return f" There are {', '.join(names)}." if len(names) < 30 else ""


def _configurables(match):
  del match
  registry = gin.config._REGISTRY
  return [selector.rpartition(".")[2] for selector, _ in registry.items()]


def _parameters(match):
  configurable = gin.get_configurable(match["configurable"])
  return set(inspect.signature(configurable).parameters) - {"self"}


def _tasks(match):
  del match
  return [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]


def _files(match):
  del match
  folders = gin_files.folder(), pathlib.Path(t5.models.__file__).parent / "gin"
  return [str(path.relative_to(folder)) for folder in folders
          for path in pathlib.Path(folder).rglob("*.gin")]


# Messages of a wrong name, and what gives the right ones.
_NAMES = {
    r"No configurable matching '(.*?)'": _configurables,
    r"Configurable '(?P<configurable>.*?)' doesn't have a parameter named "
    r"'(.*?)'": _parameters,
    r"No Task or Mixture found with name '(.*?)'": _tasks,
    r"Unable to open file: (.*?)\. Searched": _files,
}

_REMEDIES = {
    "No bindings specified for": "define it, or mend its name",
    "No module named": "mend --module_import, or install the module",
    "Error executing an HTTP request": (
        "without a network, choose a task of local data by `MIXTURE_NAME` and a "
        "vocabulary by the environment variable SYNTHESIZER_MTF_VOCAB"),
}
