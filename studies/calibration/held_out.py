"""The log-perplexity of held-out text while some heads are not V.

All of it is one graph, the mixture TARGET+V or TARGET+OTHER+V, whose weights make each
head wholly one of its parts. So an evaluation only assigns these weights.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from studies.calibration import graphs
from synthesizer_mtf import checks
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import targets

Head = tuple[str, int]  # A layer, such as "encoder/0", and the number of a head.

_MOST_BYTES = 2 ** 30  # Of outputs of the encoder that are kept.


class Cost(NamedTuple):
  """What it costs to replace some heads.

  Attributes:
    log_perplexity: of the held-out text, in nats per token.
    cost: its increase over that of V, as a share of that of V.
    error: the standard error of the cost over the rows of the text.
  """
  log_perplexity: float
  cost: float
  error: float


def parts(chosen: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
  """The parts of each layer's mixture.

  Args:
    chosen: what `blocks.choose` returns, for each word of --to.

  Returns:
    a dict from the names of layers to lists that end with V.

  Raises:
    ValueError: two targets of a layer have a variable of the same name.
  """
  found: dict[str, list[str]] = {}
  for each in chosen:
    for name, target in each.items():
      found[name] = [*dict.fromkeys([*found.get(name, []), target])]
  for name, members in found.items():
    owners: dict[str, str] = {}
    for target in members:
      for variable in notation.SYNTHESIZING_FUNCTIONS[target].variables:
        if variable in owners:
          raise checks.Error(
              f"--to names {owners[variable]} and {target} for {name}, which have a "
              "variable of the same name; give them to two commands.")
        owners[variable] = target
  return {name: [*members, blocks.KEEP] for name, members in found.items()}


class HeldOut:
  """Held-out text, and a model whose heads can be replaced.

  Attributes:
    batches: the batches.
    first: the numbers of the batches by which heads and layers are chosen.
    second: those of the batches on which the chosen ones are reported.
  """

  def __init__(self, graph: graphs.Graph, layers: Mapping[str, moments.Layer],
               mixtures: Mapping[str, Sequence[str]],
               batches: Sequence[reading.Batch]) -> None:
    """Keeps the batches.

    Args:
      graph: a model with these mixtures; `restore` gives it its variables.
      layers: `reading.Graph.layers` of the model with V.
      mixtures: what `parts` returns.
      batches: at least two batches of held-out text.

    Raises:
      ValueError: the text fills only one batch.
    """
    if len(batches) < 2:
      raise checks.Error(
          f"the held-out text fills {len(batches)} batch of --batch_size rows, but two "
          "are needed, to choose by one and report on the other; lower --batch_size, "
          "or name a larger --split.")
    self._graph, self._layers, self._mixtures = graph, layers, mixtures
    self.batches = batches
    self._known: dict[tuple[frozenset, int], tuple[np.ndarray, np.ndarray]] = {}
    self._encoded: dict[int, np.ndarray | None] = {}
    self.first = range(0, len(batches), 2)
    self.second = range(1, len(batches), 2)

  def restore(self, path: str, new: Iterable[Mapping[str, Any]]) -> None:
    """Gives the model its variables.

    Args:
      path: the path of the checkpoint of the model with V.
      new: what `fitting.variables` returns, for each word of --to.
    """
    self._graph.restore(path, {
        **{name: value for values in new for name, value in values.items()},
        **self._alphas({})})

  def heads(self, chosen: Mapping[str, str]) -> dict[Head, str]:
    """All heads of some layers, with what takes the place of V in them."""
    return {(name, head): target for name, target in chosen.items()
            for head in range(self._layers[name].heads)}

  def losses(self, replaced: Mapping[Head, str],
             batches: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """What `graphs.Graph.losses` returns, for all rows of some batches.

    Args:
      replaced: what takes the place of V, for each head that is not V.
      batches: the numbers of the batches.
    """
    key = frozenset(replaced.items())
    missing = [number for number in batches if (key, number) not in self._known]
    if missing:
      self._graph.session.assign(self._alphas(replaced))
    for number in missing:
      self._known[key, number] = self._graph.losses(
          self.batches[number], self._encoder_output(replaced, number))
    found = [self._known[key, number] for number in batches]
    loss, tokens = (np.concatenate(each).astype(np.float64) for each in zip(*found))
    return loss[tokens > 0], tokens[tokens > 0]

  def _encoder_output(self, replaced, number):
    """That of V; None if a head of it is replaced, or if memory has no more of them."""
    if any(layer_names.stack_of(name) == "encoder" for name, _ in replaced):
      return None
    if number not in self._encoded and sum(
        each.nbytes for each in self._encoded.values()
        if each is not None) < _MOST_BYTES:
      self._encoded[number] = self._graph.encoded(self.batches[number])
    return self._encoded.get(number)

  def _alphas(self, replaced):
    return {f"{self._layers[name].place}alpha": targets.alpha(
        [members.index(replaced.get((name, head), blocks.KEEP))
         for head in range(self._layers[name].heads)], len(members))
            for name, members in self._mixtures.items()}

  def cost(self, replaced: Mapping[Head, str], batches: Sequence[int]) -> Cost:
    """What it costs to replace some heads, on some batches."""
    before, tokens = self.losses({}, batches)
    after, _ = self.losses(replaced, batches)
    ratio = after.sum() / before.sum()
    rest = after - ratio * before
    error = np.sqrt(len(rest) / max(len(rest) - 1, 1) * (rest ** 2).sum())
    return Cost(after.sum() / tokens.sum(), ratio - 1, error / before.sum())
