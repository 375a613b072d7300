"""Bindings of own gin files and of --gin_param that a training does not read.

gin accepts bindings of a function that is never called, and bindings that those of an
inner scope replace, as encoder/. gin files of T5, of Mesh TensorFlow and of this
package have many of them on purpose, and so has an operative_config.gin.
"""

from absl import logging
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names

# Functions of other modes and of TPUs. One gin file may serve training and decoding.
_OTHERS = {
    "decode", "sample_autoregressive", "beam_search", "greedy_decode", "clean_decodes",
    "decode_from_file", "decode_from_dataset", "score_from_strings",
    "score_from_dataset", "save_scores", "save_scores_to_tfrecords",
    "mesh_eval_dataset_fn", "mesh_inference_dataset_fn", "get_checkpoint_iterator",
    "tpu_mesh_shape", "SimdMeshImpl", "rewrite_stack_variables"}
_OBJECTIVE = "t5.data.preprocessors.unsupervised"
# The code of this package that gin calls; other parameters of ours are read without.
_OURS = "synthesizer_mtf.attention.", "synthesizer_mtf.t5.classifier"


def warn() -> None:
  """Warns of the command's own bindings that no call has read, in one line.

  It is to be called after the first step, when all functions have been called.
  """
  places, given = {}, gin_files.given_in_command()
  own = [*gin_files.own(given), *_objectives(given)]
  for path, binding in own:
    selector = gin_names.full_name(binding.selector)
    if binding.arg_name and selector and _is_called(selector):
      places[binding.scope, selector, binding.arg_name] = gin_names.at(
          path, binding.location.line_num)
  short = gin_internals.registry().minimal_selector
  unread = [f"`{gin_files.parameter(scope, short(selector), name)}` "
            f"({where}{_instead(scope, selector, name)})"
            for (scope, selector, name), where in places.items()
            if not _is_read(scope, selector, name)]
  if unread:
    logging.warning("This training does not read %s.", ", ".join(unread))


def _objectives(given):
  """The choice of T5's objectives/*.gin; many tasks of T5 have an objective already."""
  return [(path, binding) for path, binding in given
          if gin_names.full_name(binding.selector) == _OBJECTIVE and
          "objectives" in path.split("/")]


def _is_called(selector):
  """Whether a training calls a function, if its model or data have it."""
  module = getattr(gin_internals.registry()[selector].wrapped, "__module__", "") or ""
  package = module.partition(".")[0]
  if module == "t5.data.preprocessors" and any(
      called == "synthesizer_mtf.tasks.span_corruption"
      for _, called in gin_internals.calls()):
    return False  # Our task has checked them, and has taken their values.
  if package in ("mesh_tensorflow", "t5"):
    return selector.rpartition(".")[2] not in _OTHERS
  return package != "synthesizer_mtf" or module.startswith(_OURS)


def _values(selector, name):
  """The values of a parameter, by scope."""
  return {scope: repr(values[name])
          for (scope, bound), values in gin_internals.bindings().items()
          if bound == selector and name in values}


def _is_read(scope, selector, name):
  bound = _values(selector, name)
  return any(
      name in values and gin_files.nearest(called, bound)[1] == bound.get(scope)
      for (called, function), values in gin_internals.calls().items()
      if function == selector)


def _instead(scope, selector, name):
  """What is read in the place of a binding: those of inner scopes."""
  inner = sorted(f"{other}/" for other in _values(selector, name)
                 if other != scope and other.startswith(scope))
  called = any(other == selector for _, other in gin_internals.calls())
  return f"; {' and '.join(inner)} have their own" if inner and called else ""
