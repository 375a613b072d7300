"""`synthesizer_mesh_transformer`: T5's `t5_mesh_transformer` with this package.

It takes the flags of `t5_mesh_transformer`, loads this package, and finds its
gin files from any directory. A mistake in a flag, a gin file or a data file
ends in one sentence and exit status 1; `--verbosity=1` adds the traceback.
"""

import os
import sys
import traceback

from absl import app
from absl import flags
from absl import logging
import gin
from synthesizer_mtf import compat

compat.apply()

import synthesizer_mtf  # noqa: F401
from synthesizer_mtf import checkpoints
from synthesizer_mtf import cluster
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
from synthesizer_mtf import remedies
from synthesizer_mtf import run_checks
from synthesizer_mtf import safeguards
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

_NAME = "synthesizer_mesh_transformer"

# What gin, seqio, Mesh and this package raise for a user's mistake: a wrong
# value, a gin file with a wrong syntax, and a file, a module or a process of a
# cluster that is not there; and what stops training.
_MISTAKES = (ValueError, SyntaxError, FileNotFoundError, ModuleNotFoundError,
             tf.errors.NotFoundError, cluster.LostProcess,
             safeguards.TrainingStopped)


def main(argv):
  """Runs T5's main; `argv` as absl hands it on."""
  gin_files.add_search_path()
  safeguards.apply()
  try:
    with run_checks.running(flags.FLAGS.model_dir), cluster.joined(on_loss=_end):
      checkpoints.check_folder(flags.FLAGS.model_dir)
      mesh_transformer_main.main(argv)
  except Exception as error:
    if not is_mistake(error):
      raise
    report(error)
    sys.exit(1)


def is_mistake(error):
  """Tells whether the user, not the program, has to mend this exception."""
  if isinstance(error, _MISTAKES):
    return True
  # gin has no exceptions of its own for these two, and seqio none for a task
  # that is not cached.
  missing_file = isinstance(error, OSError) and "Unable to open file" in str(
      error)
  unbound = isinstance(error, RuntimeError) and str(error).startswith(
      "Required bindings")
  not_cached = isinstance(error, AssertionError) and "cache dir" in str(error)
  no_network = isinstance(error, tf.errors.OpError) and "HTTP" in str(error)
  return missing_file or unbound or not_cached or no_network


def report(error):
  """Prints an exception, its message on the last line of standard error."""
  if logging.get_verbosity() >= logging.DEBUG:
    traceback.print_exception(type(error), error, error.__traceback__)
  sentence, places = split_message(error)
  print("\n".join(places), file=sys.stderr)
  print(f"{_NAME}: {sentence}{_bindings_in(sentence)}{remedies.remedy(sentence)}",
        file=sys.stderr)


def _end(error):
  """Ends the process while another thread waits within TensorFlow."""
  report(error)
  sys.stderr.flush()
  os._exit(1)  # sys.exit would end this thread only.


def split_message(error):
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


def _bindings_in(sentence):
  """Returns the gin bindings whose string a message cites, in parentheses.

  Not every message of T5 and Mesh says which parameter a bad file name, task or
  vocabulary came from.
  """
  found = []
  for line in gin.config_str().splitlines():
    parameter, _, value = line.partition(" = ")
    text = value.strip("'\"")
    cited = value in sentence or ("." in text or "/" in text) and text in sentence
    if text != value and cited and parameter not in sentence:
      found.append(line)
  return f" ({'; '.join(found)})" if found else ""


def console_entry_point():
  """What the installed command calls."""
  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.INFO)
  patches.assign("propagate", tf.get_logger(), False)
  app.run(main)


if __name__ == "__main__":
  console_entry_point()
