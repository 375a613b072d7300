"""The largest set of whole layers whose replacement keeps to a budget."""

from collections.abc import Mapping
from collections.abc import Sequence

from studies.calibration import held_out
import tqdm


def choose(text: held_out.HeldOut, chosen: Sequence[Mapping[str, str]],
           budget: float) -> dict[str, str]:
  """Chooses layers on the first half of the text.

  Layers are taken in the order of what each costs alone, with the target that costs
  least. A layer stays replaced if all replaced ones together keep to the budget.

  Args:
    text: a `HeldOut`.
    chosen: what can take the place of V in each layer, for each word of --to.
    budget: the largest cost, as a share of V's log-perplexity.

  Returns:
    a dict from the names of layers to what takes the place of V.
  """
  alone: dict[str, tuple[float, str]] = {}
  pairs = dict.fromkeys(pair for layers in chosen for pair in layers.items())
  for name, target in tqdm.tqdm(pairs, "Single layers", unit=" layers", mininterval=1):
    cost = text.cost(text.heads({name: target}), text.first).cost
    alone[name] = min(alone.get(name, (cost, target)), (cost, target))
  kept: dict[str, str] = {}
  for name in tqdm.tqdm(sorted(alone, key=lambda name: alone[name]), "Layers together",
                        unit=" layers", mininterval=1):
    trial = {**kept, name: alone[name][1]}
    if text.cost(text.heads(trial), text.first).cost <= budget:
      kept = trial
  return kept
