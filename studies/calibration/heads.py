"""What each head is worth, and the curve over the share of heads that are replaced."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from studies.calibration import held_out
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.calibrate import means
import tqdm

# The shares of heads at which the curve is computed.
SHARES = tuple(np.linspace(0, 1, 9))
# What the heads are sorted by. The lowest are replaced first.
ORDERS = {"cost": "their cost alone", "divergence": "their divergence",
          "trained": "the weight that V keeps in training"}
# Those that need no training.
UNTRAINED = ("cost", "divergence")
_BOTH = "both"


class Head(NamedTuple):
  """A head of a layer.

  Attributes:
    layer: the name of the layer, such as "encoder/0".
    head: its number.
    entropy: the mean entropy of V's attentions, in nats.
    constant_entropy: that of the constant attention nearest to them, renormalized to
      the keys that each query sees.
    divergence: the mean KL divergence of V's attentions from the constant one, in nats.
    costs: the `held_out.Cost` of replacing this head alone, by the words of --to.
    weights: what `trained_order.train` returns for this head, by the words of --to;
      empty if nothing was trained.
  """
  layer: str
  head: int
  entropy: float
  constant_entropy: float
  divergence: float
  costs: dict[str, held_out.Cost]
  weights: dict[str, float]


class Point(NamedTuple):
  """A point of the curve.

  Attributes:
    to: the word of --to.
    stack: the stack whose heads are replaced, or "both".
    order: one of `ORDERS`, by which they are sorted.
    share: the share of the stack's heads, one of `SHARES`.
    replaced: the number of these heads.
    cost: what it costs.
  """
  to: str
  stack: str
  order: str
  share: float
  replaced: int
  cost: held_out.Cost


def measure(text: held_out.HeldOut, found: Mapping[str, means.Means],
            constant: Mapping[str, np.ndarray],
            chosen: Mapping[str, Mapping[str, str]],
            trained: Mapping[str, Mapping[held_out.Head, float]]) -> list[Head]:
  """Measures each head alone, on the first half of the text.

  Args:
    text: a `HeldOut`.
    found: the `Means` of its layers.
    constant: the logits of the constant attention of each layer,
      <float64>[heads, length, memory_length].
    chosen: what takes the place of V in each layer, for each word of --to.
    trained: what `trained_order.train` returns, for some words of --to.

  Returns:
    a list of `Head`, in the order of layers and heads.
  """
  every = {word: text.heads(layers) for word, layers in chosen.items()}
  costs: dict[held_out.Head, dict[str, held_out.Cost]] = {}
  alone = [(word, head) for word, heads in every.items() for head in heads]
  for word, head in tqdm.tqdm(alone, "Single heads", unit=" heads", mininterval=1):
    costs.setdefault(head, {})[word] = text.cost({head: every[word][head]}, text.first)
  made = []
  for name, each in found.items():
    if name not in constant:
      continue
    entropy = each.entropy()
    nearest = each.constant_entropy(constant[name])
    # Rounding can make it less than 0.
    divergence = np.maximum(each.divergence(constant[name]), 0)
    made += [Head(name, head, float(entropy[head]), float(nearest[head]),
                  float(divergence[head]), costs[name, head],
                  {word: weights[name, head] for word, weights in trained.items()
                   if (name, head) in weights})
             for head in range(len(entropy)) if (name, head) in costs]
  return made


def curve(text: held_out.HeldOut, heads: Sequence[Head],
          chosen: Mapping[str, Mapping[str, str]],
          orders: Sequence[str] = UNTRAINED) -> list[Point]:
  """Replaces more and more heads, and reports on the second half of the text.

  Args:
    text: a `HeldOut`.
    heads: what `measure` returns.
    chosen: what takes the place of V in each layer, for each word of --to.
    orders: some of `ORDERS`.

  Returns:
    a list of `Point`.
  """
  points = []
  wanted = [*_wanted(heads, chosen, orders)]
  for word, stack, order, members in tqdm.tqdm(
      wanted, "Curves", unit=" curves", mininterval=1):
    for share in SHARES:
      replaced = members[:round(share * len(members))]
      points.append(Point(word, stack, order, float(share), len(replaced), text.cost(
          {(each.layer, each.head): chosen[word][each.layer] for each in replaced},
          text.second)))
  return points


def _wanted(heads, chosen, orders) -> Iterator[tuple[str, str, str, list[Head]]]:
  for word in chosen:
    stacks = layer_names.by_stack(
        (each.layer, each) for each in heads if word in each.costs)
    if len(stacks) > 1:
      stacks[_BOTH] = sum(stacks.values(), [])
    for stack, members in stacks.items():
      keys = {"cost": lambda each: each.costs[word].cost,  # noqa: B023 (used at once)
              "divergence": lambda each: each.divergence,
              "trained": lambda each: each.weights[word]}  # noqa: B023
      for order in orders:
        yield word, stack, order, sorted(members, key=keys[order])


def table(heads: Sequence[Head], words: Sequence[str]) -> str:
  """Returns a table of the heads."""
  trained = [word for word in words if any(word in each.weights for each in heads)]
  lines = [["layer", "head", "entropy", "of the mean", "divergence",
            *(f"cost of {word}" for word in words),
            *(f"V beside {word}" for word in trained)]]
  lines += [[each.layer, str(each.head), f"{each.entropy:.3f}",
             f"{each.constant_entropy:.3f}", f"{each.divergence:.3f}",
             *(_cost(each.costs[word], True) if word in each.costs else "-"
               for word in words),
             *(f"{each.weights[word]:.3f}" if word in each.weights else "-"
               for word in trained)] for each in heads]
  return (
      f"{tabular.markdown(lines)}\n\n"
      "entropy: of V's attentions on held-out text, in nats. of the mean: that of "
      "the constant\n  attention nearest to them. divergence: V's mean KL divergence "
      "from it; 0 if V's do\n  not depend on the text. cost: by how much the "
      "log-perplexity of held-out text grows\n  if this head alone is replaced, ± its "
      f"standard error.{_BESIDE * bool(trained)}")


_BESIDE = (" V beside: the weight that V keeps in\n  training, beside what takes its "
           "place; 0 to 1, from 0.5.")


def _cost(cost, with_error=False):
  return f"{cost.cost:+.2%}" + with_error * f" ± {cost.error:.2%}"


def curve_table(points: Sequence[Point]) -> str:
  """Returns a table of the curve, with a line for each word, stack and order."""
  lines: dict[tuple[str, str, str], list[str]] = {}
  orders = dict.fromkeys(point.order for point in points)
  for point in points:
    lines.setdefault((point.to, point.stack, point.order), []).append(
        f"{point.cost.log_perplexity:.4f}" if not point.share else _cost(point.cost))
  head = ["to", "stack", "order", "V", *(f"{100 * share:g}%" for share in SHARES[1:])]
  by = ", ".join(f"{order} ({ORDERS[order]})" for order in orders)
  return (
      f"{tabular.markdown([head, *([*key, *cells] for key, cells in lines.items())])}"
      "\n\nV: log-perplexity of other held-out text, in nats per token. 12.5% to 100%: "
      "its increase\n  with this share of the heads replaced. Order: those first for "
      f"which this is least:\n  {by}.")


def rows(heads: Sequence[Head], points: Sequence[Point]) -> list[dict[str, Any]]:
  """Returns all figures as dicts, for JSON."""
  return [
      {"kind": "head", **{key: value for key, value in each._asdict().items()
                          if key not in ("costs", "weights")}, "to": word,
       **cost._asdict(),
       **({"weight": each.weights[word]} if word in each.weights else {})}
      for each in heads for word, cost in each.costs.items()] + [
          {"kind": "curve", **{key: value for key, value in point._asdict().items()
                               if key != "cost"}, **point.cost._asdict()}
          for point in points]
