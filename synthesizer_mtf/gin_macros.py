"""Macros of the user that nothing reads: a warning, or an error if they matter.

gin accepts any macro, so `init_checkpoint = 'DIR'` in the place of
`utils.run.init_checkpoint = 'DIR'` trains from scratch. Gin files of T5 have unused
macros on purpose, but one that the user wrote is a mistake.
"""

from collections.abc import Iterable
import difflib
import re
from typing import Any

from absl import logging
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names

_RUN = "mesh_tensorflow.transformer.utils.run"
# What decides a training, and where to bind it. Commands of T5's own documentation set
# tokens_per_batch, which only some of its models read: a warning suffices.
_OF_TRAINING = {
    **{name: f"utils.run.{name}" for name in (
        "batch_size", "init_checkpoint", "learning_rate_schedule", "model_type",
        "optimizer", "sequence_length", "train_steps", "train_dataset_fn",
        "variable_filter")},
    "attention": "synthesizer_stack.attention",
    "learning_rate": "utils.run.learning_rate_schedule",
    "mixture_or_task_name": "MIXTURE_NAME",
}
# What decides an evaluation, a decoding or an export.
_OF_OTHERS = {
    **{name: f"utils.run.{name}" for name in (
        "dataset_split", "eval_checkpoint_step", "export_checkpoint_step")},
    "attention": "synthesizer_stack.attention",
    **{name: f"Bitransformer.decode.{name}" for name in ("beam_size", "temperature")},
    "mixture_or_task_name": "MIXTURE_NAME",
}
_NEAR = 0.85  # As init_checkpiont is, but a name of one's own is not.


def check_read(own: Iterable[tuple[str, Any]]) -> None:
  """Warns of macros of the user that nothing reads, once gin is parsed.

  Args:
    own: (path, binding of gin's parser) of each binding that the user wrote, as
      `gin_files.own` yields them.

  Raises:
    ValueError: such a macro has the name, or nearly the name, of something that decides
      what is trained, or what is evaluated in a mode that does not train.
  """
  bindings = gin_internals.bindings()
  # T5 asks for the task by its macro if nothing is bound to `get_vocabulary`.
  read = {"MIXTURE_NAME", *re.findall(r"%([\w./]+)", repr([*bindings.values()]))}
  unread, skipped = {}, {}  # T5 skips functions that it no longer has.
  for path, (scope, selector, name, value, location) in own:
    macro = f"{scope}/{selector}" if scope else selector
    if not name and macro not in read:
      unread[macro] = path, location.line_num, value
    elif name and not gin_internals.registry().matching_selectors(selector):
      skipped[f"{macro}.{name}"] = path, location.line_num, value
  macros = read & {scope for scope, selector in bindings if selector == "gin.macro"}
  for name, (path, line, value) in {**skipped, **unread}.items():
    said = (f"`{name}` is {'given by' if path == gin_names.FLAG else 'bound in'} "
            f"{gin_names.at(path, line)}, but nothing reads it.")
    meant = _deciding(name, path, macros)
    if meant and value not in (None, "", False):
      raise checks.Error(f"{said} Bind `{meant}`, or leave `{name}` out.")
    if name in unread:
      logging.warning("%s%s", said, _parameters_named(name) or checks.did_you_mean(
          name, macros, near_only=True))


def _deciding(name, path, macros):
  """What decides the run and has a similar name; None if nothing does.

  One gin file may serve several modes; a mode that does not train forgives its macros.
  """
  mode = gin_internals.bindings().get(("", _RUN), {}).get("mode", "train")
  if mode != "train" and path != gin_names.FLAG:
    return None
  deciding = {**{macro.lower(): macro for macro in macros},
              **(_OF_TRAINING if mode == "train" else _OF_OTHERS)}
  near = difflib.get_close_matches(
      re.split("[./]", name)[-1].lower(), deciding, n=1, cutoff=_NEAR)
  return deciding[near[0]] if near else None


def _parameters_named(name):
  """A sentence with the bound parameters that have the name of a macro, or ""."""
  near = {f"{selector.rpartition('.')[2]}.{name}"
           for (_, selector), values in gin_internals.bindings().items()
           if name in values}
  return f" Did you mean {' or '.join(sorted(near))}?" if near else ""
