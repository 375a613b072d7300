"""One sentence for an exception: what is wrong, where gin was, what to do.

What gin, seqio, T5, Mesh and this package say of a user's mistake is all that
the user needs. Anything else may be a mistake of the program, and a ValueError
of NumPy's looks like one of ours: so it counts where an exception was raised,
and what may be the program's mistake keeps its traceback in a file.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import difflib
import dis
import inspect
import pathlib
import re
import sys
import tempfile
import traceback
import types

from absl import logging
import gin
import seqio
from synthesizer_mtf import gin_files
from synthesizer_mtf.command import cluster
from synthesizer_mtf.training import estimators
import t5.models
import tensorflow.compat.v1 as tf

NAME = "synthesizer_mesh_transformer"

# The types that users' mistakes have, though not they alone.
KINDS = (ValueError, SyntaxError, FileNotFoundError, ModuleNotFoundError,
         tf.errors.NotFoundError, cluster.LostProcess,
         estimators.TrainingStopped)

# These name the file and the line, or what has happened to training.
_TELL_ALL = (SyntaxError, cluster.LostProcess, estimators.TrainingStopped)

# Whose ValueErrors are all for users. A tool that runs as a script is __main__.
_FOR_USERS = ("synthesizer_mtf", "__main__", "gin")

# Of the others, what users meet; they also raise it for what is not consistent
# within the program, such as shapes.
KNOWN = {
    "gin": ("Required bindings", "Unable to open file"),
    "seqio": (
        "Attempting to register duplicate provider",
        "Features across tasks in a mixture must use the same",
        "No datasets have a", "No file is found for the file pattern",
        "No Task or Mixture found with name", "Provider name not registered",
        "Dataset has too few files to shard", "Shuffling is disallowed for Task",
        "Stats do not exist for", "TFDS name must contain a version number",
        "contains Tasks with different output", "contains invalid characters",
        "does not contain any Tasks",
        "does not exist in any of the task cache directories",
        "need a rate for each task", "requires caching, but was called with"),
    "t5": (
        "--mode flag", "Expected targets length for span corruption",
        "Invalid checkpoint path", "Must specify a single checkpoint",
        "No checkpoint files found", "No checkpoints found",
        "Setting a priming sequence length", "checkpoint_mode is set to"),
    "mesh_tensorflow": (
        "At most one of `skip_seen_data`", "Expected only one target string",
        "Invalid checkpoint path", "Invalid checkpoint to load",
        "LayerStack.dropout_rate and LayerStack.norm_epsilon",
        "Length dimenison exceeds size of positional embedding table",
        "Must provide eval_dataset_fn", "Must provide train_dataset_fn",
        "No checkpoint files found", "No examples were scored",
        "No matching files found",
        "Tensor dimension maps to multiple mesh dimensions",
        "Tensor dimension size not divisible by mesh dimension size",
        "Two Tensor Dimensions may not map to the same Mesh Dimension",
        "Unknown Switch gating policy", "Unknown policy",
        "You asked for checkpoints", "`sequence_length` must be specified",
        "autoregressive Transformer needs output vocabulary",
        "do not sum to the vocab size", "don't know how to beam search",
        "for dropout annealing required", " have feature ",
        "input_full_attention only makes sense", "is not a multiple of",
        "is not divisible by", "len(inputs) must divide len(targets)",
        "must provide one of eval_dataset_fn", "num_memory_heads must divide",
        "only supports decoder-only LMs", "requires dataset_split",
        "sampling_keep_top_k must", "shared_embedding requires encoder",
        "unknown method", "unknown mode", "unknown model_type",
        "unrecognized relative_attention_type", "variable_filter must be"),
}


def is_mistake(error: BaseException) -> bool:
  """Tells whether the user, not the program, has to mend this exception."""
  text = str(error)
  if isinstance(error, _TELL_ALL):
    return True
  if isinstance(error, tf.errors.OpError) and "HTTP" in text:
    return True
  if isinstance(error, tf.errors.DataLossError):
    return any(part in text for part in _DAMAGES)
  if isinstance(error, (FileNotFoundError, tf.errors.NotFoundError)):
    return bool(_bindings_in(text))
  if isinstance(error, ModuleNotFoundError):
    return _importer(error) in ("gin", "t5")
  package = _raiser(error)
  if package in _FOR_USERS and isinstance(error, ValueError):
    return True
  return any(part in text for part in KNOWN.get(package, ()))


def _raiser(error: BaseException) -> str | None:
  """The package whose `raise` or `assert` made an exception, if any did.

  A function written in C has no frame of its own: what it raises comes from
  another instruction of its caller.
  """
  steps = _steps(error)
  if not steps:
    return None
  code, place = steps[-1].tb_frame.f_code.co_code, steps[-1].tb_lasti
  raises = dis.opname[code[place]] == "RAISE_VARARGS"
  return _package(steps[-1]) if raises else None


def _importer(error: BaseException) -> str | None:
  """The package that wanted a module which is not there."""
  packages = map(_package, reversed(_steps(error)))
  return next((p for p in packages if p != "importlib"), None)


def _steps(error: BaseException) -> list[types.TracebackType]:
  """The traceback of an exception, the outermost frame first."""
  steps, step = [], error.__traceback__
  while step:
    steps.append(step)
    step = step.tb_next
  return steps


def _package(step: types.TracebackType) -> str:
  return step.tb_frame.f_globals.get("__name__", "").partition(".")[0]


@contextlib.contextmanager
def ending(name: str, *others: type[Exception]) -> Iterator[None]:
  """Ends a tool with one sentence where its user has to mend an exception.

  Args:
    name: of the tool.
    *others: types of exceptions that are the user's as well, whatever they say.
  """
  try:
    yield
  except Exception as error:
    if not (is_mistake(error) or isinstance(error, others)):
      raise
    sys.exit(f"{name}: {split_message(error)[0]}")


def report(error: BaseException) -> None:
  """Prints an exception, its message on the last line of standard error."""
  if logging.get_verbosity() >= logging.DEBUG:
    traceback.print_exception(type(error), error, error.__traceback__)
  sentence, places = split_message(error)
  end = "" if is_mistake(error) else _keep_traceback(error)
  print("\n".join(places), file=sys.stderr)
  print(f"{NAME}: {sentence}{_bindings_in(sentence)}{_remedy(sentence)}{end}",
        file=sys.stderr)


def _keep_traceback(error: BaseException) -> str:
  """Writes the traceback to a file, and returns what says so."""
  if error.__traceback__ is None:
    return ""
  lines = traceback.format_exception(type(error), error, error.__traceback__)
  try:
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{NAME}_", suffix=".txt", delete=False, encoding="utf-8",
        errors="backslashreplace") as f:
      f.writelines(lines)
  except OSError:
    sys.stderr.writelines(lines)
    return " (this may be a mistake of the program: its traceback is above)"
  return (" (this may be a mistake of the program: its traceback is in "
          f"{f.name})")


def split_message(error: BaseException) -> tuple[str, list[str]]:
  """Separates what an exception says from where gin was.

  gin appends the configurable, its scope and the line of the gin file to the
  message of an exception, each on lines of its own; for a macro without a value
  the whole configuration, which is left out.

  Args:
    error: an exception.

  Returns:
    (the message on one line, a list of gin's lines).
  """
  if isinstance(error, SyntaxError):
    where = error.filename or "--gin_param"
    return f"{where}: {error.msg} {(error.text or '').strip()}".strip(), []
  text, _, _ = str(error).partition(" in config string:")
  lines = [line for line in text.splitlines() if line.strip()]
  first = next((i for i, line in enumerate(lines)
                if line.startswith(("  In call to configurable", "  In file",
                                    "  In bindings string"))), len(lines))
  sentence = " ".join(line.strip() for line in lines[:first])
  return sentence or type(error).__name__, lines[first:]


def _bindings_in(sentence: str) -> str:
  """Returns the gin bindings whose string a message cites, in parentheses.

  Not every message of T5 and Mesh says which parameter a bad file name, task or
  vocabulary came from.
  """
  found = []
  # gin would break lines, and values, that are long.
  for line in gin.config_str(max_line_length=10_000).splitlines():
    parameter, _, value = line.partition(" = ")
    text = value.strip("'\"")
    cited = value in sentence or ("." in text or "/" in text) and text in sentence
    if text != value and cited and parameter not in sentence:
      found.append(line)
  return f" ({'; '.join(found)})" if found else ""


def _remedy(sentence: str) -> str:
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


def _suggest(wrong: str, names: list[str]) -> str:
  near = difflib.get_close_matches(wrong, names, n=3)
  if near:
    return f" Did you mean {' or '.join(near)}?"
  return f" There are {', '.join(names)}." if len(names) < 30 else ""


def _configurables(match: re.Match) -> Iterable[str]:
  del match
  registry = gin.config._REGISTRY
  return [selector.rpartition(".")[2] for selector, _ in registry.items()]


def _parameters(match: re.Match) -> Iterable[str]:
  configurable = gin.get_configurable(match["configurable"])
  return set(inspect.signature(configurable).parameters) - {"self"}


def _tasks(match: re.Match) -> Iterable[str]:
  del match
  return [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]


def _files(match: re.Match) -> Iterable[str]:
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

_DAMAGED = (
    "a file of the data set or of a cache is damaged, as by a copy that was "
    "interrupted: prepare the data set, or make the cache, again")
_DAMAGES = ("truncated record", "corrupted record")

_REMEDIES = {
    **dict.fromkeys(_DAMAGES, _DAMAGED),
    "No bindings specified for": "define it, or mend its name",
    "No module named": "mend --module_import, or install the module",
    "Error executing an HTTP request": (
        "without a network, choose a task of local data by `MIXTURE_NAME` and a "
        "vocabulary by the environment variable SYNTHESIZER_MTF_VOCAB"),
}
