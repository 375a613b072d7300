"""The configuration of a T5 with synthesized attention (arXiv:2005.00743).

It is T5's, with two more keys. `encoder_attention` and `decoder_attention` describe the
self-attention of each block: a list with one dict for each block, or one dict for all.
A dict has

  synthesizers   a list of dicts; `name` is one of V, R, Fix, FR, T, D, FD, Pattern, and
                 the other keys are the parameters of that class in
                 modeling_synthesizer.py, such as max_length
  weights        how the logits of several synthesizers mix: "per_head" (the default),
                 "per_layer" or "sum"
  relative_bias  T5's relative position bias: "bias_shared" for one table in a stack,
                 "bias" for one in each layer, or null
  num_heads, d_kv, dropout_rate   if they differ from the model's
  softmax        false to use the logits themselves as weights

A string such as "R+V" stands for a dict with the defaults of each part and
"bias_shared".
"""

import difflib

import transformers

DEFAULT = "V"
_ATTENTIONS = ("encoder_attention", "decoder_attention")
_WITHOUT_TABLES = ("V", "Pattern")
_KEYS = ("synthesizers", "weights", "relative_bias", "num_heads", "d_kv",
         "dropout_rate", "softmax")
_VALUES = {"weights": ("per_head", "per_layer", "sum"),
           "relative_bias": ("bias_shared", "bias", None)}


class SynthesizerConfig(transformers.T5Config):
  """T5's configuration, and the self-attention of each block."""

  model_type = "synthesizer"

  def __init__(self, **kwargs):
    """Takes T5's keys and the two of this class; refuses one that is mistyped."""
    _refuse_mistyped(kwargs)
    super().__init__(**kwargs)

  def attention_of(self, is_decoder: bool) -> list[dict]:
    """Returns the description of the self-attention of each block of a stack."""
    key = "decoder_attention" if is_decoder else "encoder_attention"
    blocks = self.num_decoder_layers if is_decoder else self.num_layers
    entries = getattr(self, key, DEFAULT)
    if not isinstance(entries, list):
      entries = [entries] * blocks
    if len(entries) != blocks:
      raise ValueError(
          f"config.json has {key} for {len(entries)} blocks, but the stack has "
          f"{blocks}; give one entry for each block, or one for all.")
    return [_described(entry) for entry in entries]

  @classmethod
  def from_dict(cls, config_dict, **kwargs):
    """As Transformers' own; it refuses a `max_length`, which would change no table.

    It refuses a mistyped key, too, which Transformers would leave out.
    """
    _refuse_mistyped(kwargs)
    if "max_length" in kwargs:
      raise ValueError(
          f"max_length={kwargs['max_length']} changes no table of a model that is "
          "loaded; load it without, and call model.resize(max_length) then.")
    return super().from_dict(config_dict, **kwargs)

  def resize(self, max_length: int) -> None:
    """Describes the attentions with tables of another length."""
    self.update({
        key: [resized_attention(block, max_length)
              for block in self.attention_of(key == "decoder_attention")]
        for key in _ATTENTIONS})

  @property
  def is_tied(self) -> bool:
    """Whether the output layer is the embedding, whose outputs T5 then scales.

    Transformers 5 always sets `tie_word_embeddings`.
    """
    return getattr(self, "scale_decoder_outputs", self.tie_word_embeddings)


def resized_attention(attention: dict, max_length: int) -> dict:
  """Returns the description of an attention with tables of another length.

  Raises:
    ValueError: `max_length` is not an integer of at least 2, or no multiple of FD's b.
  """
  if not isinstance(max_length, int) or max_length < 2:
    raise ValueError(f"max_length is {max_length!r}; give an integer of at least 2.")
  parts = [dict(part) for part in attention["synthesizers"]]
  for part in parts:
    if part["name"] not in _WITHOUT_TABLES:
      part["max_length"] = max_length
    if part["name"] == "FD" and not part.get("tile_length"):
      part["a"], rest = divmod(max_length, part.get("b", 1))
      if rest:
        raise ValueError(f"max_length is {max_length}, but FD needs a multiple of its "
                         f"b, {part['b']}; give one.")
  return {**attention, "synthesizers": parts}


def _refuse_mistyped(keys):
  for key in keys:
    near = difflib.get_close_matches(key, _ATTENTIONS, cutoff=.85)
    if near and key not in _ATTENTIONS:
      raise ValueError(f"the configuration has the key {key!r}, which nothing reads; "
                       f"did you mean {near[0]!r}?")


def _described(entry):
  if isinstance(entry, str):
    return {"synthesizers": [{"name": name} for name in entry.split("+")],
            "relative_bias": "bias_shared"}
  for key, value in entry.items():
    if key not in _KEYS:
      raise ValueError(f"an attention has the key {key!r}, which nothing reads; the "
                       f"keys are {', '.join(_KEYS)}.")
    if key in _VALUES and value not in _VALUES[key]:
      raise ValueError(f"{key!r} of an attention is {value!r}; give one of "
                       f"{', '.join(map(repr, _VALUES[key]))}.")
  return entry
