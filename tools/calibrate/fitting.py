"""What takes the place of V in each layer, from batches of a task.

    graph = reading.Graph(data.spec); graph.restore(path)      # The model with V.
    fit = fitting.fit(graph, lambda: data.batches(100), {"encoder/0": "R"}, shapes)
    other.restore(path, fitting.variables(fit))                # The model with targets.

`fit.means` has the mean attention and the entropies of each layer and head, and
`fit.replacements` what takes the place of V, in the layers that were asked for.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import targets

# Functions that fit attentions which depend on the tokens, by notation. Each gets all
# of its layers at once: (graph, batches, shapes of the variables by layer, means,
# biases). studies/calibration/ has those of D and FD.
FURTHER: dict[str, Callable[..., dict[str, targets.Replacement]]] = {}


def names() -> tuple[str, ...]:
  """The notations that can take the place of V."""
  return *targets.NAMES, *FURTHER


class Fit(NamedTuple):
  """What was read, and what was made of it.

  Attributes:
    means: the `Means` of each layer that is V, by its name, such as "encoder/0".
    replacements: that of each layer that was asked for; its variables have the names
      that they have in the layer, such as "R".
    layers: `reading.Graph.layers` of the model with V.
  """
  means: dict[str, means.Means]
  replacements: dict[str, targets.Replacement]
  layers: Mapping[str, moments.Layer]


def fit(graph: reading.Graph, batches: Callable[[], Iterable[reading.Batch]],
        notations: Mapping[str, str], shapes: Mapping[str, Sequence[int]],
        known: Mapping[str, means.Means] | None = None) -> Fit:
  """Reads batches, and makes what takes the place of V.

  Args:
    graph: the model with V, with the variables of its checkpoint.
    batches: a function that returns the batches to read, each time from the first.
    notations: the target of each layer to replace, one of `names()`, by its name.
    shapes: `reading.Graph.shapes` of a model in which these layers are the target, or
      the mixture TARGET+V.
    known: `Fit.means` of an earlier call with the same batches, which are then not read
      again for it.

  Returns:
    a `Fit`.

  Raises:
    ValueError: a target has an option that cannot be made from V.
  """
  averages = dict(known) if known else means.gather(
      map(graph.sums, batches()), graph.layers)
  biases, made = graph.biases(), {}
  inside = {name: _inside(graph.layers[name].place, shapes) for name in notations}
  for name, notation in notations.items():
    if notation in targets.NAMES:
      made[name] = targets.replacement(
          notation, averages[name], biases.get(name), inside[name])
  for function in dict.fromkeys(FURTHER.values()):
    made.update(function(
        graph, batches, {name: inside[name] for name, notation in notations.items()
                         if FURTHER.get(notation) is function}, averages, biases))
  return Fit(averages, {name: made[name] for name in notations}, graph.layers)


def _inside(place, shapes):
  """The shapes of a layer's variables, by their names in the layer."""
  return {full[len(place):]: shape for full, shape in shapes.items()
          if full.startswith(place)}


def variables(made: Fit, heads: Mapping[str, Sequence[int]] | None = None,
              ) -> dict[str, np.ndarray]:
  """The new variables of a model, by their full names, as in `session.Session.assign`.

  Args:
    heads: for each layer that is a mixture TARGET+V, the heads that are TARGET; the
      others are V. None for a model without mixtures.
  """
  new = {made.layers[name].place + variable: value
         for name, replacement in made.replacements.items()
         for variable, value in replacement.variables.items()}
  for name, chosen in (heads or {}).items():
    layer = made.layers[name]
    new[layer.place + "alpha"] = targets.alpha(
        [int(head not in chosen) for head in range(layer.heads)])
  return new
