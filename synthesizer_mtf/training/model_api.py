"""T5's Python API, `t5.models.MtfModel`, with the attention that was asked for.

`MtfModel` fills gin by itself: first with the operative_config.gin of a model's
folder, then with its `extra_gin_bindings`. gin would let the former win, whose
bindings have scopes, and would let it replace what was bound before. `apply`
keeps the order that people mean: what they ask for wins.

`MtfModel` does not call `utils.run`. What works there alone, such as what is
bound to `utils.run.train_model_fn`, is named in the log where it is bound.
"""

from collections.abc import Callable
from collections.abc import Iterable
import functools
import inspect
import os
from typing import Any

from absl import logging
import gin
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
from synthesizer_mtf import stack
from synthesizer_mtf.command import gin_checks
from synthesizer_mtf.training import warm_start
from t5.models import mtf_model
import tensorflow.compat.v1 as tf

# The attentions, by scope, that MtfModel itself has bound: they belong to the
# model that was used last, and not to the next.
_of_last_model = {}


def apply() -> None:
  """Changes T5's `MtfModel` as above; once is enough."""
  patches.wrap("_parse_operative_config", mtf_model, _keeping_what_was_asked)
  for key, make in (("estimator", _careful), ("train", _prepared),
                    ("eval", _with_a_folder),
                    ("finetune", _with_names_of_the_command)):
    patches.wrap(key, mtf_model.MtfModel, make)


def _keeping_what_was_asked(parse: Callable[[str], None]) -> Callable[[str], None]:
  @functools.wraps(parse)
  def wrapped(model_dir):
    _forget_last_model()
    asked = stack.choices()
    start = gin_files.bound("warm_start.checkpoint", None)
    parse(model_dir)
    # A warm start belongs to the run that it began.
    if gin_files.bound("warm_start.checkpoint", None) != start:
      _bind("warm_start.checkpoint", start)
    loaded = stack.choices()
    _let_win(asked, loaded)
    _of_last_model.update(
        {scope: value for scope, value in stack.choices().items()
         if scope not in asked})

  return wrapped


def _forget_last_model():
  for scope, value in stack.choices().items():
    if scope in _of_last_model and _of_last_model[scope] == value:
      _choose(scope, None)
  _of_last_model.clear()


def _let_win(asked, others):
  """Binds what was asked for also in the scopes that others bind."""
  for scope, other in {**others, **asked}.items():
    value = stack.nearest(scope, asked)
    if value is not None and value != stack.choices().get(scope):
      logging.info("`synthesizer_stack.attention` is %r, not %r as in "
                   "operative_config.gin.", value, other)
      _choose(scope, value)


def _choose(scope, value):
  _bind(f"{scope + '/' if scope else ''}synthesizer_stack.attention", value)


def _bind(parameter, value):
  with gin.unlock_config():
    gin.bind_parameter(parameter, value)


def _careful(estimator: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(estimator)
  def wrapped(self, vocabulary, init_checkpoint=None, **kwargs):
    _read_extra(self._gin_bindings)
    gin_checks.check_model(gin_files.bindings())
    if init_checkpoint is None or not stack.choices() or warm_start.bound():
      return estimator(self, vocabulary, init_checkpoint, **kwargs)
    start = gin.get_bindings("synthesizer_mtf.warm_start")
    made = estimator(self, vocabulary, None, **kwargs)
    # MtfModel's steps count from those of the checkpoint.
    warm_start.add_start(
        made, init_checkpoint, start.get("fresh"), start.get("renames", ()),
        continue_training=True)
    return made

  return wrapped


def _read_extra(bindings: Iterable[str] | str | None) -> None:
  """Reads `extra_gin_bindings`, and lets their attention win in all scopes."""
  before = stack.choices()
  for scope in before:
    _choose(scope, None)
  try:
    with gin.unlock_config():
      gin.parse_config(bindings)
    extra = stack.choices()
  finally:
    for scope, value in before.items():
      if scope not in stack.choices():
        _choose(scope, value)
  _let_win(extra, before)
  _of_last_model.update(
      {scope: value for scope, value in stack.choices().items()
       if stack.nearest(scope, extra) is not None})


def _prepared(train: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(train)
  def wrapped(self, mixture_or_task_name, steps, *args, **kwargs):
    _name_what_is_not_used()
    schedule = self._learning_rate_schedule
    if callable(schedule) and "total_train_steps" in inspect.signature(
        schedule).parameters:
      patches.assign("learning rate", self, functools.partial(
          schedule, total_train_steps=steps))
    return train(self, mixture_or_task_name, steps, *args, **kwargs)

  return wrapped


def _name_what_is_not_used():
  parameter = "utils.run.train_model_fn"
  function = gin.get_bindings("utils.run", resolve_references=False).get(
      "train_model_fn")
  if function is not None and "warm_start" not in repr(function):
    logging.warning(
        "`%s` is %r, but MtfModel does not use it: it trains in its own way, "
        "without seeds and summaries; synthesizer_mesh_transformer without "
        "--use_model_api has them.", parameter, function)


def _with_a_folder(evaluate: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(evaluate)
  def wrapped(self, mixture_or_task_name, checkpoint_steps=None, summary_dir=None,
              split="validation", **kwargs):
    folder = summary_dir or os.path.join(self._model_dir, f"{split}_eval")
    tf.io.gfile.makedirs(folder)
    return evaluate(self, mixture_or_task_name, checkpoint_steps, folder, split,
                    **kwargs)

  return wrapped


def _with_names_of_the_command(finetune: Callable[..., Any]) -> Callable[..., Any]:
  names = {"steps": "finetune_steps",
           "checkpoint_steps": "pretrained_checkpoint_step"}

  @functools.wraps(finetune)
  def wrapped(self, *args, **kwargs):
    kwargs = {names.get(name, name): value for name, value in kwargs.items()}
    return finetune(self, *args, **kwargs)

  return wrapped
