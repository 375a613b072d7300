"""Maps a model's variables to a checkpoint's variables, by names alone.

The variables `q`, `k`, `v`, `o` and `relative_attention_bias` mean the same in all
self-attention layers, although T5 names the scope by the layer's class
(`layer_000/SelfAttention/q`). T5's norm is `layer_norm` and `final_layer_norm` in
models of its version 1.0, and `rms_norm` since. All other variables of our layers, and
the classifier on an encoder, are new to a T5 checkpoint and may start fresh.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import re
from typing import Any
from typing import NamedTuple

from synthesizer_mtf import checks
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import notation
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.trainer.checkpoints import optimizer_slots

GLOBAL_STEP = "global_step"

_LAYERS = {cls.__name__: cls for cls in notation.LAYERS.values()}
_OURS = "|".join(["SyntheticAttention", *sorted(_LAYERS)])
_LAYER = re.compile(rf"(^|/)({_OURS}|SelfAttention)/(part_\d+/)?")
_NEW = re.compile(
    rf"(^|/)({_OURS})/(?!(q|k|v|o|relative_attention_bias)$)"
    r"|^classifier(_hidden_\d+)?/kernel$")  # Of `EncoderClassifier`.
# The scopes of `sublayer_rms_norm`, `sublayer_legacy_rms_norm` and
# `sublayer_legacy_final_rms_norm`. Other norms have other scopes, or more variables.
_NORM = re.compile(r"(^|/)(rms_norm|layer_norm|final_layer_norm)/scale$")
_BIAS = "relative_attention_bias"
_WITH_BIAS = {"SelfAttention", "SyntheticAttention", "SparseFixed", "SparseStrided"}

# The meaning of the axes of T5's variables.
_AXES = {"positional_embedding": base.Axes(positions=(-2,)),
         _BIAS: base.Axes(heads=-2)}
_UNKNOWN = base.Axes()


# Shapes of variables by their names.
Shapes = dict[str, tuple[int, ...]]


class Growth(NamedTuple):
  """How new entries of a variable come from the old ones.

  Attributes:
    axes: the axes, as negative indices, that are longer than in the checkpoint.
    before: the checkpoint's variable with the entry before the first; None if the first
      entry has none before it.
  """
  axes: tuple[int, ...]
  before: str | None = None


class Plan(NamedTuple):
  """What a model takes from a checkpoint.

  Attributes:
    taken: a dict from names of the model's variables to names in the checkpoint.
    resized: the names in `taken` of variables whose lengths differ.
    fresh: names of the model's variables that start fresh.
    optimizer: the number of the optimizer's variables that start fresh.
    unused: names of unused variables of the checkpoint, except the optimizer's.
    missing: the names in `fresh` of variables that the checkpoint should have.
    interpolated: the `Growth` of those in `resized` whose entries are interpolated.
  """
  taken: dict[str, str]
  resized: list[str]
  fresh: list[str]
  optimizer: int
  unused: list[str]
  missing: list[str]
  interpolated: Mapping[str, Growth]


class Selection(NamedTuple):
  """What a user's functions in gin select, as Mesh's `init_checkpoint` asks them.

  Attributes:
    loads: whether to load a variable of the model, by its name.
    renamed: the name in the checkpoint of a variable of the model that is loaded.
    pattern: a regular expression; names in the checkpoint that it does not match are
      not loaded.
  """
  loads: Callable[[str], bool] = lambda name: True
  renamed: Callable[[str], str] = lambda name: name
  pattern: str = ""

  def has(self, source: str) -> bool:
    """Whether to load a variable of the checkpoint, by its name."""
    return bool(re.search(self.pattern, source))


_EVERYTHING = Selection()


def make_plan(path: str, model: Shapes, saved: Shapes, fresh: str | None = None,
              renames: Iterable[tuple[str, str]] = (), continue_training: bool = False,
              selection: Selection = _EVERYTHING, strict: bool = True,
              endings: Collection[str] = (), interpolate: bool = False) -> Plan:
  """Finds the source of each variable of a model.

  Args:
    path: the path of the checkpoint, for messages.
    model: the shapes of the model's variables.
    saved: the shapes of the checkpoint's.
    fresh: a regular expression; variables whose names it matches start fresh.
    renames: pairs (regular expression, replacement) that turn a name in the model
      into the name in the checkpoint; the first match counts.
    continue_training: also take the step and the optimizer's variables.
    selection: variables that it does not load start fresh.
    strict: whether a missing variable that is not new is an error.
    endings: those of the slots of a user's optimizer, see `optimizer_slots.split`.
    interpolate: whether growing tables are interpolated.

  Raises:
    ValueError: a variable that is not new is missing in the checkpoint, or a variable
      matches several variables, or has another shape.
  """
  variables, theirs = (_without_optimizer(names, endings) for names in (model, saved))
  wanted = {n: _rename(selection.renamed(n), renames) for n in variables
            if not (fresh and re.search(fresh, n)) and selection.loads(n)}
  taken = _find(path, wanted, variables, theirs)
  missing = [n for n, renamed in wanted.items()
             if n not in taken and not _NEW.search(n) and selection.has(renamed)]
  _check_missing(path, missing, strict or not taken)
  taken = {n: source for n, source in taken.items() if selection.has(source)}
  _check_heads(path, taken, variables, theirs)
  resized = [n for n, source in taken.items()
             if _is_resized(path, n, model[n], source, saved)]
  growth = {n: _growth(n, taken[n], model, saved) for n in resized if interpolate}
  others = [n for n in model if n not in variables]
  if continue_training:
    taken.update({
        n: source for n, source in _optimizer(
            others, taken, resized, model, saved, endings).items()
        if selection.loads(n) and selection.has(source)})
  used = set(taken.values())
  return Plan(
      taken, resized, [n for n in variables if n not in taken],
      sum(n not in taken for n in others),
      [n for n in theirs if n not in used], missing,
      {n: how for n, how in growth.items() if how})


def _without_optimizer(shapes, endings):
  """The shapes of the model's own variables: neither an optimizer's nor the step."""
  return {name: shape for name, shape in shapes.items() if name != GLOBAL_STEP and
          not optimizer_slots.is_slot(name, shapes, endings)}


def _find(path, wanted, model, saved):
  """The names in the checkpoint of variables, by those in the model.

  `wanted` has the names in the checkpoint as far as these are known. The shapes are
  those of `make_plan`, without the optimizer.
  """
  candidates = collections.defaultdict(list)
  for name in saved:
    candidates[_key(name)].append(name)
  rivals = collections.Counter(_key(n) for n in wanted if n not in saved)
  taken = {}
  for name, renamed in wanted.items():
    sources = [renamed] if renamed in saved else [
        source for source in candidates[_key(renamed)] if source not in model]
    if not sources and name.endswith("/" + _BIAS):
      sources = _shared_bias(name, saved)
    if len(sources) > 1 or sources and renamed not in saved and (
        rivals[_key(name)] > 1):
      raise checks.Error(
          f"{name!r} could start from any of {', '.join(sources)} of the "
          f"checkpoint {path!r}, and others could, too; say which with "
          "`warm_start.renames`, or let it start fresh with `warm_start.fresh`.")
    if sources and _means_the_same(name, sources[0], model, saved):
      taken[name] = sources[0]
  return taken


def _check_missing(path, missing, strict):
  if missing and strict:
    raise checks.Error(
        f"the checkpoint {path!r} has no variable for {_listed(missing)}, which "
        "are not new in our layers; give the model file that it was trained "
        "with, name them with `warm_start.renames`, or let them start fresh with "
        "`warm_start.fresh`, a regular expression.")


def _key(name):
  """The name without the class of the layer, the part of the mixture, and the norm."""
  return norm_key(_LAYER.sub(r"\1self_attention/", name))


def norm_key(name: str) -> str:
  """The name with one spelling of T5's norm in the place of all."""
  return _NORM.sub(r"\1rms_norm/scale", name)


def _rename(name, renames):
  for pattern, replacement in renames:
    if re.search(pattern, name):
      return re.sub(pattern, replacement, name)
  return name


def _shared_bias(name, saved):
  """T5's shared relative position bias of a stack, which may be in any layer."""
  stack = name.partition("block_")[0]
  biases = [n for n in saved if n.startswith(stack) and n.endswith("/" + _BIAS)]
  return biases if len(biases) == 1 else []


def _means_the_same(name, source, model, saved):
  """Whether a variable means the same in both, as far as variable names tell.

  An `alpha` must weigh the same parts. A norm of another name must have one variable.
  """
  if not name.endswith("/alpha") and (name == source or not _NORM.search(name)):
    return True
  return _names_beside(name, model) == _names_beside(source, saved)


def _names_beside(name, names):
  scope = name[:name.rindex("/") + 1]
  return {n[len(scope):] for n in names if n.startswith(scope)}


def _check_heads(path, taken, model, saved):
  """Checks heads and d_kv, which can differ although the shape of q does not."""
  def heads(names, shapes):
    return {(name.partition("block_")[0], shapes[name][axis])
            for name in names
            if _LAYER.search(name)
            for axis in [_axes(name).heads] if axis}

  ours, theirs = heads(model, model), heads(saved, saved)
  for stack, number in sorted(ours):
    others = {n for s, n in theirs if s == stack}
    if others and number not in others and any(
        _LAYER.search(n) and n.startswith(stack) for n in taken):
      raise checks.Error(
          f"the checkpoint {path!r} has {others.pop()} heads in {stack!r}, but "
          f"the model has {number}; bind `SyntheticAttention.num_heads` and "
          "`SyntheticAttention.key_value_size`, or the macros num_heads and "
          "d_kv, to those of the checkpoint.")


def _is_resized(path, name, shape, source, saved):
  """Whether lengths differ; raises a ValueError if anything else does."""
  old = saved[source]
  if old == shape:
    return False
  axes = {a % len(shape) for a in _axes(name).positions} if shape else ()
  if len(old) == len(shape) and all(
      a == b or i in axes for i, (a, b) in enumerate(zip(old, shape))):
    return True
  raise checks.Error(
      f"{source!r} has the shape {list(old)} in the checkpoint {path!r}, but the "
      f"model's {name!r} has {list(shape)}; {_remedy(name, old)}.")


def _axes(name):
  """The `Axes` of a variable, as T5's own are or as the classes of layers declare."""
  variable, layer = name.rpartition("/")[2], _LAYER.search(name)
  classes: Iterable[Any] = (
      [_LAYERS[layer[2]]] if layer and layer[2] in _LAYERS
      else functions.SYNTHESIZING_FUNCTIONS.values())
  return next((known[variable] for known in (_AXES, *(c.variables for c in classes))
               if variable in known), _UNKNOWN)


def has_variable(cls: str, name: str) -> bool:
  """Whether a class of functions, by its name, has a variable in the model."""
  return any(known.__name__ == cls and name.rpartition("/")[2] in known.variables
             for known in functions.SYNTHESIZING_FUNCTIONS.values())


def _growth(name, source, model, saved):
  """The `Growth` of a resized variable; None if nothing can be interpolated."""
  axes, old, new = _axes(name), saved[source], model[name]
  grown = tuple(a for a in axes.positions if new[a] > old[a])
  before = axes.after and f"{source.rpartition('/')[0]}/{axes.after}"
  if not grown or not axes.linear or before and before not in saved:
    return None
  return Growth(grown, before)


def _remedy(name, old):
  """The remedy for a shape that differs."""
  if name.rpartition("/")[2] in ("q", "k", "v", "o", _BIAS):
    return ("bind `SyntheticAttention.num_heads` and "
            "`SyntheticAttention.key_value_size`, or the macros num_heads and "
            "d_kv, to those of the checkpoint")
  if _axes(name).remedy:
    return _axes(name).remedy.format(size=old[-1])
  return ("change the model's sizes, or let it start fresh with "
          "`warm_start.fresh`")


def _optimizer(others, taken, resized, model, saved, endings):
  """The step, and the slots of variables with the same shape."""
  slots = {}
  for name in others:
    source = name
    variable, slot = optimizer_slots.split(name, model, endings)
    if slot:
      if variable not in taken or variable in resized:
        continue
      source = taken[variable] + slot
    if saved.get(source) == model[name]:
      slots[name] = source
  return slots


def describe(path: str, plan: Plan, model: Shapes, saved: Shapes) -> list[str]:
  """The lines of a summary of a plan, for the log."""
  def resized(interpolated):
    return [f"{n} {list(saved[plan.taken[n]])} -> {list(model[n])}"
            for n in plan.resized if (n in plan.interpolated) == interpolated]

  groups = [
      ("from variables of another name", [
          f"{n} from {source}" for n, source in plan.taken.items()
          if n != source and not optimizer_slots.is_slot(n, plan.taken)]),
      ("resized to `max_length`, interpolated", resized(True)),
      ("resized to `max_length`, new positions fresh", resized(False)),
      ("fresh", plan.fresh),
      ("in the checkpoint but not in the model", plan.unused)]
  lines = [f"{len(plan.taken)} variables start from {path}", *(
      f"{title}: {_listed(names, 1000)}" for title, names in groups if names)]
  lines.append(
      f"the step count continues; {plan.optimizer} variables of the optimizer start "
      "fresh"
      if GLOBAL_STEP in plan.taken else
      "the step counts from 0, and the optimizer starts fresh")
  return [f"Warm start: {line}." for line in lines]


def warnings(path: str, plan: Plan, model: Shapes) -> list[str]:
  """The lines about what is probably wrong in a plan, for the log."""
  lines = []
  if plan.missing:
    lines.append(f"{path} has no variable for {_listed(plan.missing, 1000)}, which "
                 "start fresh; if they should not, give the model file that it was "
                 "trained with, or name them with `warm_start.renames`")
  lines += [f"{path} has a relative position bias in {stack!r}, on which its weights "
            f"rely, but the model has none; bind `{cls}.relative_attention_type = "
            "\"bias_shared\"`" for stack, cls in _without_bias(plan, model)]
  return [f"Warm start: {line}." for line in lines]


def _without_bias(plan, model):
  """(stack, class) of the stacks whose relative position bias is lost.

  Convolutions and Linformer have none.
  """
  def stacks(names):
    return {n.partition("block_")[0] for n in names if n.endswith("/" + _BIAS)}

  for stack in sorted(stacks(plan.unused) - stacks(plan.taken)):
    classes = {layer[2] for n in model if n.startswith(stack)
               for layer in [_LAYER.search(n)] if layer}
    for cls in sorted(classes & _WITH_BIAS):
      yield stack, cls


def _listed(names, most=3):
  """Names with blocks grouped, as `block_* ... (12)`."""
  count = collections.Counter(
      re.sub(r"block_\d+", "block_*", name) for name in names)
  shown = [f"{name} ({n})" if n > 1 else name
           for name, n in list(count.items())[:most]]
  more = len(count) - len(shown)
  return ", ".join(shown) + (f" and {more} more" if more else "")
