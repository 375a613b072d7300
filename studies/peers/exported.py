"""Writes V with random weights as a Hugging Face folder, from which baselines decode.

Our own export writes the folder. Its vocabulary has a made-up piece for each id.
"""

import dataclasses
import functools
import os
import tempfile

from studies.peers import pieces
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.hugging_face import exporting


def folder(config: model.Configuration) -> str:
  """Returns the path of a folder with a model of these sizes, which is made once.

  Args:
    config: the sizes. The model always has T5's relative position bias, whatever
      `config.relative_bias` is, because Hugging Face's T5 has no other positions.
  """
  made = _exported(dataclasses.replace(
      config, relative_bias=True, batch=1, decode_batch=1, beam=1))
  return os.path.join(made.name, "model")


@functools.lru_cache(maxsize=1)
def _exported(config):
  made = tempfile.TemporaryDirectory(prefix="benchmark")
  checkpoint = os.path.join(made.name, "model.ckpt-0")
  path = os.path.join(made.name, "pieces.model")
  pieces.write(path, config.vocabulary)
  v = attentions.find_row("V")
  chosen = [f"{vocabulary.PARAMETER} = {path!r}",
            f"{vocabulary.EXTRA_IDS_PARAMETER} = 0"]
  program = model.build(
      v._replace(stack_bindings=lambda *stack: v.stack_bindings(*stack) + chosen),
      config, "eval")
  program.session.save(checkpoint)
  program.close()
  exporting.run(checkpoint, 0, os.path.join(made.name, "model"))
  return made
