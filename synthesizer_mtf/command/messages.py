"""One last line for an exception that ends a command: what is wrong, and what to do.

Our own checks raise a `checks.Error`, whose message says all that the user needs. For
any other exception the line also names a file with the traceback.
"""

from collections.abc import Iterator
import contextlib
import inspect
import pathlib
import re
import signal
import sys
import tempfile
import tokenize
import traceback

from absl import logging
import gin
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
import t5.models

# The beginnings of lines that gin appends to the message of an exception.
_PLACES = ("  In call to configurable", "  In file", "  In bindings string")
_WHOLE = "  In call to configurable 'run'"  # All calls are inside `run`.


@contextlib.contextmanager
def ending(name: str) -> Iterator[None]:
  """Ends a command with one last line instead of an exception.

  The exit status is 1, or 128 plus the signal's number if a signal ended the command.

  Args:
    name: the name of the command.
  """
  try:
    yield
  except KeyboardInterrupt as stop:
    print(str(stop) or "Stopped.", file=sys.stderr)
    sys.exit(128 + getattr(stop, "number", signal.SIGINT))
  except Exception as error:
    sys.exit(last_line(name, error))


def last_line(name: str, error: Exception) -> str:
  """Returns the last line of a command, and prints the lines above it.

  The lines above it are the traceback, with `--verbosity=1`, and gin's location.

  Args:
    name: the name of the command.
    error: the exception that ends the command.
  """
  trace = "".join(traceback.format_exception(error))
  if logging.get_verbosity() >= logging.DEBUG:
    sys.stderr.write(trace)
  sentence, places = _split(error)
  sys.stderr.writelines(f"{place}\n" for place in places)
  end = "" if isinstance(error, checks.Error) else _keep(name, trace)
  remedy = next((f"; {what}." for text, what in _REMEDIES.items() if text in sentence),
                "")
  said = sentence.removesuffix(".") if remedy else sentence
  return f"{name}: {said}{_bindings_in(said)}{remedy}{_meant(said)}{end}"


def _keep(name, trace):
  """Writes a traceback to a file, and returns a sentence that names the file."""
  try:
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{name}_", suffix=".txt", delete=False, encoding="utf-8",
        errors="backslashreplace") as f:
      f.write(trace)
  except OSError:
    sys.stderr.write(trace)
    return " (its traceback is above)"
  return f" (its traceback is in {f.name})"


def _split(error):
  """Separates an exception's message from gin's location.

  gin appends the configurable, its scope and the line of the gin file, on separate
  lines. For a macro without a value it appends the whole configuration, which is
  dropped. Other messages are cut to the first paragraph, as TensorFlow lists operations
  below it. Messages with TensorFlow's own traceback are cut to the last paragraph.

  Args:
    error: an exception.

  Returns:
    (the message on one line, a list of gin's lines).
  """
  if isinstance(error, (SyntaxError, tokenize.TokenError)):
    return _of_syntax(error), []
  text, _, _ = str(error).partition(" in config string:")
  text = re.sub(r" Searched config paths: \[.*\]\.?", "", text)
  lines = text.splitlines()
  first = next((i for i, line in enumerate(lines) if line.startswith(_PLACES)),
               len(lines))
  said = re.split(r"\n\s*\n", "\n".join(lines[:first]).strip())
  if not isinstance(error, checks.Error):
    said = said[-1:] if said[0] == "in user code:" else said[:1]
  sentence = " ".join(map(str.strip, "\n".join(said).splitlines()))
  if " " not in sentence:  # Such as "'key'" of a KeyError, or an empty message.
    sentence = f"{type(error).__name__}: {sentence}".removesuffix(": ")
  return sentence, [re.sub(r" \(<.*>\)$", "", line) for line in lines[first:]
                    if not line.startswith(_WHOLE)]


def _of_syntax(error):
  """The syntax error in a line of gin, with its file or flag."""
  if isinstance(error, tokenize.TokenError):
    said, place = error.args if len(error.args) == 2 else (error.args[0], ("?",))
    return (f"line {place[0]} of a gin file, or of all --gin_param: {said}; close each "
            "quote and bracket.")
  where = error.filename or "--gin_param"
  line = (error.text or "").strip()
  token = re.search(r"Failed to parse token '(.*)'", error.msg or "")
  if token or "Unable to parse value" in error.msg:
    value = token[1] if token else line.partition("=")[2].strip()
    known = value.title() if value.lower() in ("true", "false", "none") else repr(value)
    meant = f"{known} or " if re.fullmatch(r"[\w./*~-]+", value) else ""
    return (f"{where}: Unable to parse value in {line}; write {meant}a number, a text "
            "in quotes, @FUNCTION or %MACRO.")
  return (f"{where}: {error.msg} {line}; write each binding as PARAMETER = VALUE, on a "
          "line of its own.")


def _bindings_in(sentence: str) -> str:
  """Returns the gin bindings of strings that a message quotes, in parentheses.

  Some messages of T5 and Mesh do not say which parameter a wrong file name, task or
  vocabulary came from.
  """
  found = []
  # By default gin breaks long lines and values.
  for line in gin.config_str(max_line_length=10_000).splitlines():
    parameter, _, value = line.partition(" = ")
    text = value.strip("'\"")
    cited = value in sentence or ("." in text or "/" in text) and text in sentence
    if text != value and cited and parameter not in sentence:
      found.append(line)
  return f" ({'; '.join(found)})" if found else ""


def _meant(sentence: str) -> str:
  """A sentence with the names near to one that gin or seqio does not know, or "".

  They find these mistakes while T5's main parses gin and looks the task up, before any
  check of ours.
  """
  found = _UNKNOWN.search(sentence)
  if not found:
    return ""
  if found["file"]:
    return checks.did_you_mean(found["file"], _files())
  if found["parameter"]:
    configurable = gin.get_configurable(found["configurable"])
    return checks.did_you_mean(
        found["parameter"], {*inspect.signature(configurable).parameters} - {"self"})
  known = (selector.rpartition(".")[2] for selector, _ in gin_files.registry().items())
  macros = (name for name, selector in gin_files.bindings()
            if selector.endswith("gin.macro"))
  return checks.did_you_mean(re.split("[./]", found["name"])[-1], [
      *known, *macros, *seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()])


def _files() -> list[str]:
  folders = gin_files.folder(), pathlib.Path(t5.models.__file__).parent / "gin"
  return [str(path.relative_to(folder)) for folder in folders
          for path in pathlib.Path(folder).rglob("*.gin")]


_UNKNOWN = re.compile(
    r"Unable to open file: (?P<file>.*?)\.?$"
    r"|Configurable '(?P<configurable>.*?)' doesn't have a parameter named "
    r"'(?P<parameter>.*?)'"
    r"|No (?:configurable matching(?: reference)?|bindings specified for"
    r"|Task or Mixture found with name) '@?(?P<name>.*?)(?:/gin.macro|\(\))?'")

# Messages of gin and T5's main from before the finalize hooks, and about networks and
# damaged data, which only reading finds.
_REMEDIES = {
    **dict.fromkeys(("truncated record", "corrupted record"), (
        "a file of the data set or of a cache is damaged, as by a copy that was "
        "interrupted: prepare the data set, or make the cache, again")),
    "Got: ": "write `MIXTURE_NAME` as a name in quotes, such as 'synth_text_pairs'",
    "set to `%gin.REQUIRED`": "bind it by --gin_param",
    "No module named": "mend --module_import, or install the module",
    "Error executing an HTTP request": (
        "without a network, choose a task of local data by `MIXTURE_NAME` and a "
        "vocabulary by the environment variable SYNTHESIZER_MTF_VOCAB"),
}
