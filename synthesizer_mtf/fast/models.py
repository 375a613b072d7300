"""T5's models with parts of this room: embeddings, the loss and decoding.

Only Mesh TensorFlow's `Unitransformer` itself is replaced, by a subclass, and only if
nobody has replaced the methods that the subclass calls or overrides.
"""

import copy
from typing import Any

from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.fast import vocabulary
from synthesizer_mtf.fast.decoding import decoder


class ReadingDecoder(vocabulary.Reader, decoder.Decoder):
  """A `Unitransformer` with everything of this room."""


# By whether it reads the vocabulary, and whether it decodes.
_CLASSES = {(True, True): ReadingDecoder, (True, False): vocabulary.Reader,
            (False, True): decoder.Decoder}
_PARTS = "encoder", "decoder", "student", "teacher"


def _methods():
  stock, embedding = transformer.Unitransformer, transformer.VocabEmbedding
  return [stock._call_internal, stock._compute_loss, stock.sample_autoregressive,
          stock.beam_search, embedding.ids_to_embedding, embedding.hidden_to_logits]


_STOCK = _methods()


def for_model(model: Any, reads: bool = True, decodes: bool = True) -> Any:
  """A model with the parts of this room.

  Args:
    model: a `Unitransformer`, or a model that contains some, such as a
      `Bitransformer`.
    reads: whether embeddings and losses read the vocabulary.
    decodes: whether our own loops decode.

  Returns:
    a subclass for a stock `Unitransformer`; a copy of a model with such parts; all
    others themselves, and all models if Mesh's methods were replaced.
  """
  if _methods() != _STOCK:
    return model
  if type(model) is transformer.Unitransformer:
    cls = _CLASSES.get((reads, decodes and model.autoregressive))
    return _as(cls, model) if cls else model
  if not isinstance(model, (transformer.Bitransformer, transformer.StudentTeacher)):
    return model
  whole = copy.copy(model)
  vars(whole).update({part: for_model(old, reads, decodes)
                      for part, old in vars(model).items() if part in _PARTS})
  return whole


def _as(cls, model):
  """An instance of the class with all attributes of a model."""
  fast = cls.__new__(cls)
  fast.__dict__.update(vars(model))
  return fast
