"""`synthesizer_mesh_transformer`: T5's `t5_mesh_transformer` with this package.

It takes the flags of `t5_mesh_transformer`, loads this package, and finds its gin files
from any directory. An exception ends it with one last line and exit status 1. For our
own checks, the line is their message. For any other exception, the line also names a
file with the traceback. `--verbosity=1` prints every traceback.
"""

import functools
import gc
import os
import signal
import sys

from absl import app
from absl import flags
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_macros
from synthesizer_mtf import gin_names
from synthesizer_mtf import patches
from synthesizer_mtf.fast import switch
from synthesizer_mtf.runtime import processes
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.command import joining
from synthesizer_mtf.trainer.command import precedence
from synthesizer_mtf.trainer.command import run_checks
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.data import unknown_pieces
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import messages
from synthesizer_mtf.trainer.watching import stopping
from t5.models import mesh_transformer
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

_NAME = "synthesizer_mesh_transformer"
# What T5's README calls by another name than T5's command.
_RENAMED = {"--mode=export": "--mode=export_predict"}
# T5's main takes the vocabulary of this task, before it finalizes gin.
_TASK = "", "t5.models.mesh_transformer.get_vocabulary", "mixture_or_task_name"


def main(argv: list[str]) -> None:
  """Runs T5's main; absl passes `argv`."""
  gin_files.add_search_path()
  with joining.ending(), messages.ending(_NAME), switch.started():
    _check_words(argv)
    _check_flags()
    joining.check_environment(bool(flags.FLAGS.tpu))
    model_folder.check_folder(flags.FLAGS.model_dir)
    with patches.wrapped("run", utils, _prepared):
      mesh_transformer_main.main(argv)


def _check_words(argv):
  """Checks that the command names a model folder and has no words besides flags."""
  for word in argv[1:]:
    flag = "--gin_file=" if word.endswith(".gin") else (
        "--gin_param=" if "=" in word else "--FLAG=")
    raise checks.Error(f"{word!r} is not a flag; write {flag}{word}, or leave it out.")
  if flags.FLAGS["model_dir"].using_default_value:
    raise checks.Error("--model_dir is missing; name the folder of the model, as in "
                       "--model_dir=models/r+v, which need not exist yet.")


def _check_flags():
  """Checks the flags with modules and gin files, and the task that these choose."""
  gin_names.import_modules(flags.FLAGS.module_import)
  given = gin_files.check(
      flags.FLAGS.gin_file, flags.FLAGS.gin_param,
      flags.FLAGS.skip_all_gin_unknowns or
      flags.FLAGS.additional_deprecated_gin_references)
  task = given.get(_TASK)
  if str(task).startswith("%"):
    task = given.get(("", str(task)[1:], ""))
  if task not in (None, ""):  # Without tasks, as with tsv_dataset_fn, it is "" in T5.
    data_checks.check_task(task)
  if str(flags.FLAGS.tpu).lower() in ("false", "no", "0"):
    raise checks.Error(f"--tpu is {flags.FLAGS.tpu!r} but must be the name or the "
                       "address of a TPU; leave it out to run without one.")


def _prepared(run):
  """Wraps `utils.run`, which T5's main calls once gin is parsed."""
  def job(**kwargs):
    gin_macros.check_read(gin_files.own(gin_files.given_in_command()))
    precedence.check_folder(flags.FLAGS.model_dir)
    if precedence.find_vocabulary(flags.FLAGS.model_dir):
      # T5's main has bound one before; `kwargs` has only flags.
      gin_files.bind({"utils.run.vocabulary": mesh_transformer.get_vocabulary()})
    precedence.check_named(flags.FLAGS.model_dir)
    checked = run_checks.bound_run(
        "command", gin_internals.bindings(), flags.FLAGS.model_dir)
    run_checks.check(checked)
    _run(run, kwargs, checked)

  @functools.wraps(run)
  def wrapped(**kwargs):
    joining.run(functools.partial(job, **kwargs), on_loss=_end)

  return wrapped


def _run(run, kwargs, checked):
  """Runs `utils.run`, once its bindings are checked."""
  if checked.reads_text:
    unknown_pieces.log(checked.task, checked.split)
  with console.evaluating(run_checks.evaluated(checked)):
    run(**kwargs)


def _end(error: processes.LostProcess) -> None:
  """Ends the process even if another thread waits for others."""
  print(messages.last_line(_NAME, error), file=sys.stderr, flush=True)
  os._exit(1)  # sys.exit would end only this thread.


def as_read(word: str) -> str:
  """Returns a word of the command with today's name of a mode, and the home for ~."""
  word = _RENAMED.get(word, word)
  flag, equals, value = word.partition("=")
  return word if not equals else flag + equals + os.path.expanduser(value)


def console_entry_point() -> None:
  """Starts the command, however this module was imported."""
  gc.freeze()  # Skips imports in the last garbage collection, which saves a second.
  gc.enable()
  signal.signal(signal.SIGTERM, stopping.stop)
  stopping.own_process()
  tf.logging.set_verbosity(tf.logging.ERROR)
  tf.disable_v2_behavior()  # Logs a deprecation warning.
  tf.logging.set_verbosity(tf.logging.INFO)
  console.for_a_person()
  app.run(main, [*map(as_read, sys.argv)])


if __name__ == "__main__":
  console_entry_point()
