"""Mixtures of attentions after their softmax, whose weights can be between 0 and 1.

PAPA (arXiv:2211.03495) interpolates between attentions. The paper's mixture adds logits
before the softmax, which is not the same between 0 and 1: half of the logits of a
sharp attention are still sharp.
"""

import contextlib
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import layer
from synthesizer_mtf.attention import notation


class SyntheticAttention(layer.SyntheticAttention):
  """alpha_1 softmax(S_1(X)) + ... + alpha_N softmax(S_N(X)), in evaluation mode.

  Variables: those of the mixture, under the same names, which Mesh TensorFlow makes
  from the name of the class.
  """

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    del losses
    inputs = self.heads.inputs(context, x, packed=self.packed)
    parts = self.mixture.parts(inputs)
    bias = [*map(inputs.read, self.relative_position_bias.logits(inputs))]
    values, mask = inputs.project_memory("v"), inputs.mask()
    means = []
    for terms, alpha in zip(parts, self.mixture.alphas(inputs)):
      # A layer is captured once.
      with intermediates.without_capture() if means else contextlib.nullcontext():
        means.append(alpha * attend.attend(
            inputs, [*map(inputs.read, terms), *bias], values, mask))
    return inputs.project_back(sum(means[1:], means[0]))


class Notation(str):
  """A notation of a mixture, such as "R+V", that gin can use as a layer class."""

  def __call__(self, **arguments: Any) -> layer.SyntheticAttention:
    made = notation.attention_layer(str(self), **arguments)
    assert isinstance(made, layer.SyntheticAttention)
    # The same parameters in a layer that computes something else.
    own = SyntheticAttention.__new__(SyntheticAttention)
    own.__dict__.update(vars(made))
    return own
