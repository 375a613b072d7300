"""Models of all notations with random weights, what Mesh TensorFlow computes with them,
and their exported folders."""

import json

import mesh_tensorflow as mtf
import numpy as np
from support import hugging_face
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.hugging_face import __main__ as command
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import trained
import tensorflow.compat.v1 as tf

MAX_LENGTH = 16
BASE = [
    "include 'models/laptop.gin'", *models.TINY,
    "decoder/Unitransformer.z_loss = 0.0",
    "beam_search.num_prefilter = 0",  # Looks at all tokens, as Transformers does.
    "RandomLogits.max_length = 16", "FixedRandomLogits.max_length = 16",
    "FactorizedRandomLogits.max_length = 16", "FactorizedRandomLogits.rank = 3",
    "ToeplitzLogits.max_length = 16", "DenseLogits.max_length = 16",
    "FactorizedDenseLogits.max_length = 16",
    "decoder/FixedPatterns.patterns = ['previous', 'start']",
    "encoder/FixedPatterns.patterns = ['right_context', 'end']"]


def lines(attention, *more, bias="bias_shared"):
  """Lines of gin for an attention of both stacks."""
  return [f"synthesizer_stack.attention = {attention!r}",
          f"SyntheticAttention.relative_attention_type = {bias!r}", *more]


def examples(count=3, length=11):
  """Inputs and targets <int>[count, length]; the second row of each is padded."""
  inputs, targets = np.random.RandomState(3).randint(3, 500, (2, count, length))
  for ids, end in ((inputs, length - 4), (targets, length - 5)):
    ids[1, end - 1] = 1
    ids[1, end:] = 0
  return inputs, targets


def random_examples(seed, length=None):
  """Inputs and targets <int>[batch, length]; sizes and padding are random.

  Args:
    seed: of the draw; the batch has seed mod 4 + 1 rows.
    length: of both, whose first rows then have no padding; or None for random ones.
  """
  random = np.random.RandomState(seed)
  both = []
  for _ in range(2):
    size = length or random.randint(5, MAX_LENGTH)
    ends = random.randint(1, size + 1, (seed % 4 + 1, 1))
    if length:
      ends[0] = size
    index = np.arange(size)
    ids = np.where(index == ends - 1, 1, random.randint(3, 500, (len(ends), size)))
    both.append(np.where(index < ends, ids, 0))
  return both


class Exported:
  """A model of ours with random weights, in the folder `ours`."""

  def __init__(self, folder, spiece, gin):
    self.ours, self.theirs = folder / "ours", folder / "theirs"
    self.ours.mkdir(parents=True)
    self._gin = self.ours / "operative_config.gin"
    self._gin.write_text("\n".join(
        [*BASE, f"{vocabulary.PARAMETER} = {str(spiece)!r}", *gin]) + "\n")

  def compute(self, inputs, targets, decode=0, beam=1, gradients=True):
    """Computes in Mesh TensorFlow, and writes the checkpoint.

    The embedding of the end of a sequence is large, so that some decodes end.

    Returns:
      a dict of arrays: inputs, targets, logits, encoded, decoded, beams, loss and the
      gradients by the names of variables.
    """
    gin_files.parse([str(self._gin)])
    m = models.Model(vocabulary=600)
    with m.tf_graph.as_default():
      ids, wanted = m.ids(inputs), m.ids(targets)
      logits, _ = m.model.call_simple(ids, wanted, False, mode="eval")
      fetched = {"logits": logits}
      with tf.variable_scope("", reuse=True):
        fetched["encoded"] = m.encode(ids)
        if decode:
          fetched["decoded"] = m.model.decode(ids, max_decode_length=decode)
        if beam > 1:
          fetched["beams"] = m.model.decode(
              ids, max_decode_length=decode, beam_size=beam, alpha=0.0)
        if gradients:
          _, loss = m.model.call_simple(ids, wanted, True, mode="train")
          fetched["loss"] = loss
          variables = m.graph.trainable_variables
          grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
          fetched.update({f"gradient {v.name}": g for v, g in zip(variables, grads)})
      (values,), variables = m.run(
          *fetched.values(), values=_random(m.graph.all_variables))
    hugging_face.save_variables(self.ours, 7, {"global_step": np.int64(7), **{
        name: np.asarray(value, np.float32) for name, value in variables.items()}})
    return {"inputs": inputs, "targets": targets, **dict(zip(fetched, values))}

  def export(self, *words):
    command.main(["export", str(self.ours), f"--output={self.theirs}", *words])

  def names(self):
    """A dict from our names to theirs, and whether theirs is transposed."""
    gin_files.parse([str(self._gin)])
    arch, blocks = trained.read(str(self.ours / "model.ckpt-7"), 7, lambda name: False)
    is_t5 = json.loads((self.theirs / "config.json").read_text())["model_type"] == "t5"
    return {w.mesh: (w.hugging_face, w.transposed)
            for w in architecture.weights(arch, blocks, is_t5)}


def _random(variables, scale=0.3):
  generator = np.random.RandomState(0)
  values = {variable.name: scale * generator.randn(*variable.shape.to_integer_list)
            for variable in variables}
  values["shared/embedding"][1] *= 3
  return values
