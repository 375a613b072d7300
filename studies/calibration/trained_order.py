"""The order of PAPA (arXiv:2211.03495): by one trained weight for each head.

`sort_calculating` in the authors' code. A head's attention is

  sigmoid(w) V + (1 - sigmoid(w)) C

with the constant attention C, and w is trained for all heads at once, from 0, while the
pretrained model does not change. The heads with the lowest w are replaced first. There
is no pull toward C: a head whose C is as good as its V stays at 0, and one whose C is
better goes below.

Departures from PAPA:

* C is whatever takes the place of V, D too, in the encoder and in the decoder.
* PAPA trains a classifier with the weights, on what the layers of an encoder put out.
  T5 can do its task, so the weights are all that is trained, on T5's own loss.
* PAPA takes 15 epochs with dropout, by AdamW at a rate of 2e-5 without weight decay.
  Here it is Adam at a rate of 0.05 for 100 batches without dropout, so that a weight
  can come near 0 or 1 in few steps. Its epsilon is 1e-6, not 1e-8, so that the rounding
  errors of a head whose V is constant do not move its weight.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from studies.calibration import graphs
from studies.calibration import held_out
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import targets

STEPS = 100
RATE = 0.05


def variables(layers: Mapping[str, moments.Layer],
              mixtures: Iterable[str]) -> list[str]:
  """The names of the variables that `train` changes.

  Args:
    layers: `reading.Graph.layers` of the model with V.
    mixtures: the names of the layers that are mixtures.
  """
  return [f"{layers[name].place}alpha" for name in mixtures]


def train(graph: graphs.Graph, layers: Mapping[str, moments.Layer],
          mixtures: Mapping[str, Sequence[str]], chosen: Mapping[str, str],
          batches: Iterable[reading.Batch]) -> dict[held_out.Head, float]:
  """Trains the weight of V in each head, and nothing else.

  Args:
    graph: a model whose mixtures are `interpolation.Notation`, with its variables,
      differentiated for `variables`.
      Its mixtures have other weights afterwards; nothing else has changed.
    layers: `reading.Graph.layers` of the model with V.
    mixtures: what `held_out.parts` returns.
    chosen: what takes the place of V in each layer, for one word of --to.
    batches: batches of training text; each is a step.

  Returns:
    a dict from heads to sigmoid(w), the weight of V: 0 where the other part should take
    its place first, 1 where last.
  """
  heads = [(name, head) for name in chosen for head in range(layers[name].heads)]
  weights, mean, square = np.zeros([3, len(heads)])
  for step, batch in enumerate(batches, 1):
    graph.session.assign(_alphas(layers, mixtures, chosen, weights))
    found = graph.gradients(batch)
    gradient = np.concatenate([
        _for_weight(found[f"{layers[name].place}alpha"], mixtures[name].index(target))
        for name, target in chosen.items()])
    mean += 0.1 * (gradient - mean)
    square += 0.001 * (gradient ** 2 - square)
    weights -= RATE * mean / (1 - 0.9 ** step) / (
        np.sqrt(square / (1 - 0.999 ** step)) + 1e-6)
  return dict(zip(heads, (1 / (1 + np.exp(-weights))).tolist()))


def _alphas(layers, mixtures, chosen, weights):
  """The variables of all mixtures; V's softmax is sigmoid(w), and 1 where it stays."""
  counts = [layers[name].heads for name in chosen]
  of_layer = dict(zip(chosen, np.split(weights / 2, np.cumsum(counts)[:-1])))
  made = {}
  for name, members in mixtures.items():
    alpha = targets.alpha([len(members) - 1] * layers[name].heads, len(members))
    if name in chosen:
      alpha[:, members.index(chosen[name])] = -of_layer[name]
      alpha[:, -1] = of_layer[name]
    made[f"{layers[name].place}alpha"] = alpha
  return made


def _for_weight(gradient, target):
  """The gradient for w <float>[heads], from that for alpha <float>[heads, parts]."""
  return (gradient[:, -1] - gradient[:, target]) / 2
