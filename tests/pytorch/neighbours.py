"""Computes random models in PyTorch with padding, caches, dtypes and ways to decode.

  PYTHON neighbours.py FOLDER COUNT SEED

FOLDER holds modeling_synthesizer.py. For each of COUNT draws the script prints a line
of JSON: the draw, the largest `error`, and what is `allowed`. The reference is each
text alone: without padding, without a cache, in float32. The first draw is compiled.
The last line holds the messages about what is `refused`, and the errors of layers that
are used `alone`.
"""

import importlib
import itertools
import json
import pathlib
import random
import sys
import types

import torch
from torch.nn import functional
import transformers

NEW, IDS, END, MAX_LENGTH = 6, 40, 39, 20
PARTS = [
    {"name": "V"}, {"name": "R"}, {"name": "Fix"}, {"name": "FR", "rank": 3},
    {"name": "T"}, {"name": "D"}, {"name": "D", "share_heads": True, "use_bias": True},
    {"name": "FD", "a": 5, "b": 4},
    {"name": "Pattern", "patterns": ["previous", "start", "uniform", "end"]}]
CACHES = ["static", "none", "dynamic", "hybrid", "static objects", "only one", "tuples"]
WAYS = ["greedy", "forward", "sample", "beams", "prompt", "assisted", "lookup",
        "classes"]


def main(folder, count, seed):
  transformers.logging.set_verbosity_error()
  torch.set_num_threads(1)
  package = types.ModuleType("exported")
  package.__path__ = [str(pathlib.Path(folder).resolve())]
  sys.modules["exported"] = package
  code = importlib.import_module("exported.modeling_synthesizer")
  for number in range(int(count)):
    torch.manual_seed(number)
    drawn = draw(random.Random(f"{seed} {number}"), number)
    case = Case(code, drawn)
    if not number:
      case.model.forward = torch.compile(case.model.forward, backend="eager")
    error, allowed = case.compare()
    print(json.dumps({**drawn, "error": error, "allowed": allowed}), flush=True)
  print(json.dumps({"refused": refused(code), "alone": alone(code)}), flush=True)


def draw(rng, number):
  """A configuration; 56 in a row have all pairs of a cache and a way to decode."""
  return {
      "cache": CACHES[number % len(CACHES)],
      "way": WAYS[number // len(CACHES) % len(WAYS)],
      "dtype": rng.choice(["float32", "float32", "float16", "bfloat16"]),
      "side": rng.choice(["left", "right"]),
      "lengths": [rng.randint(1, 9) for _ in range(rng.choice([1, 1, 2, 3]))],
      "padding": rng.randint(0, 6), "attentions": rng.random() < 0.2,
      "encoder": attention(rng), "decoder": attention(rng)}


def attention(rng):
  parts = [dict(part) for part in rng.sample(PARTS, rng.choice([1, 1, 2, 3]))]
  for part in parts:
    if part["name"] not in ("V", "Pattern"):
      part["max_length"] = MAX_LENGTH
      if part["name"] != "FD" and rng.random() < 0.2:
        part["tile_length"] = 4
  return {"synthesizers": parts, "softmax": rng.random() < 0.9,
          "weights": rng.choice(["per_head", "per_layer", "sum"]),
          "relative_bias": rng.choice(["bias_shared", "bias", None])}


class Case:
  """A random model and texts; `exact` is the model in float32."""

  def __init__(self, code, drawn):
    self.drawn, self.way, self.cache = drawn, drawn["way"], drawn["cache"]
    cls = (code.SynthesizerForSequenceClassification if self.way == "classes" else
           code.SynthesizerForConditionalGeneration)
    config = code.SynthesizerConfig(
        vocab_size=IDS, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=END,
        tie_word_embeddings=False, encoder_attention=drawn["encoder"],
        decoder_attention=drawn["decoder"],
        classifier_pooling="first" if drawn["padding"] % 2 else "mean")
    self.model = cls(config).eval()
    for name, weight in self.model.named_parameters():
      if name.split(".")[-1] in ("R", "R1", "R2", "T", "T_after", "W2"):
        weight.data.mul_(3)  # Some padding then has much larger logits than the tokens.
    self.model.to(getattr(torch, drawn["dtype"]))
    self.exact = cls(config).eval()
    self.exact.load_state_dict(self.model.state_dict())
    count = 1 if self.way in ("assisted", "lookup") else None
    self.texts = [torch.randint(2, END, (n,)) for n in drawn["lengths"][:count]]

  @torch.no_grad()
  def compare(self):
    """The largest error, and the allowed one: that of the texts alone in this dtype."""
    inputs = dict(zip(("input_ids", "attention_mask"),
                      self.padded(self.texts, self.drawn["padding"])))
    pairs = list({"classes": self.classes, "forward": self.forward,
                  "beams": self.beams}.get(self.way, self.generate)(inputs))
    error, noise = (max(float((a.float() - b.float()).abs().max())
                        for a, b in pairs_of) for pairs_of in zip(*pairs))
    return error, {"float32": 1e-4, "float16": 5 * noise + 0.02,
                   "bfloat16": 5 * noise + 0.1}[self.drawn["dtype"]]

  def classes(self, inputs):
    logits = self.model(**inputs).logits
    for text, row in zip(self.texts, logits):
      exact, own = (model(input_ids=text[None]).logits[0]
                    for model in (self.exact, self.model))
      yield (row, exact), (own, exact)

  def forward(self, inputs):
    """Logits of given targets, a few tokens at a time if there is a cache."""
    targets = [torch.cat([torch.tensor([0]), torch.randint(2, END, (int(n),))])
               for n in torch.randint(1, 5, (len(self.texts),))]
    ids, mask = self.padded(targets, self.drawn["padding"] // 2)
    past = self.caches(inputs)
    logits, ends = [], [ids.shape[1]] if self.cache == "none" else range(
        2, ids.shape[1] + 1)
    for start, end in zip([0, *ends], ends):
      out = self.model(**inputs, decoder_input_ids=ids[:, start:end],
                       decoder_attention_mask=mask[:, :end], **past)
      logits.append(out.logits)
      if self.cache != "none":
        past["past_key_values"] = self.next(out.past_key_values)
    for i, row in enumerate(torch.cat(logits, 1)):
      yield self.alone(i, targets[i], row[mask[i].bool()])

  def generate(self, inputs):
    """Logits of the tokens that `generate` chooses."""
    begins = [torch.tensor([0])] * len(self.texts)
    if self.way == "prompt":
      begins = [torch.arange(len(self.texts) + 1 - i) for i in range(len(self.texts))]
      ids, mask = self.padded(begins, side="left")
      inputs.update(decoder_input_ids=ids, decoder_attention_mask=mask)
    more = {"assisted": {"assistant_model": self.exact}, "sample": {"do_sample": True},
            "lookup": {"prompt_lookup_num_tokens": 2}}.get(self.way, {})
    out = self.call(inputs, output_logits=True, **more)
    logits = torch.stack(out.logits, 1)
    for i, row in enumerate(logits):
      target = out.sequences[i, -len(row) - len(begins[i]):]
      stop = int((target == END).float().argmax()) or len(target) - 1
      count = stop + 1 - len(begins[i])
      yield self.alone(i, target[:stop], row[:count])

  def beams(self, inputs):
    """The log-likelihoods of the texts that a beam search finds."""
    out = self.call(inputs, num_beams=3, length_penalty=0.0, output_scores=True)
    for i, target in enumerate(out.sequences):
      stop = int((target == END).float().argmax()) or len(target) - 1
      exact, noise = self.alone(i, target[:stop], torch.zeros(stop, IDS))
      likelihoods = [logits.float().log_softmax(-1).gather(
          -1, target[1:stop + 1, None]).sum() for logits in (exact[1], noise[0])]
      yield (out.sequences_scores[i], likelihoods[0]), (likelihoods[1], likelihoods[0])

  def call(self, inputs, **more):
    return self.model.generate(
        **{"do_sample": False, **inputs, **self.caches(inputs), **more},
        max_new_tokens=NEW, return_dict_in_generate=True,
        output_attentions=self.drawn["attentions"])

  def caches(self, inputs):
    """Arguments that choose a cache."""
    if self.way in ("assisted", "lookup") and self.cache != "only one":
      return {}  # They need a cache that can be cut, and make it.
    if self.cache == "none":
      return {"use_cache": False}
    if self.cache in ("static", "hybrid") and self.way != "forward":
      return {"cache_implementation": self.cache}
    if self.cache == "only one":
      return {"past_key_values": transformers.DynamicCache()}
    if self.cache in ("dynamic", "tuples"):
      return {}
    own, cross = (transformers.StaticCache(config=self.model.config, max_cache_len=size)
                  for size in (MAX_LENGTH, inputs["input_ids"].shape[1]))
    return {"past_key_values": transformers.EncoderDecoderCache(own, cross)}

  def next(self, cache):
    if self.cache != "tuples":
      return cache
    return tuple((own.keys, own.values, cross.keys, cross.values) for own, cross in zip(
        cache.self_attention_cache.layers, cache.cross_attention_cache.layers))

  def alone(self, i, target, logits):
    """Pairs of logits after each token of a target: with the exact ones, and noise."""
    count = len(logits)
    exact, own = (model(
        input_ids=self.texts[i][None], decoder_input_ids=target[None, :],
        use_cache=False).logits[0, -count:] for model in (self.exact, self.model))
    return (logits, exact), (own, exact)

  def padded(self, texts, more=0, side=None):
    """Ids and mask <int>[texts, length]; all are at least `more` shorter."""
    length = max(map(len, texts)) + more
    side = side or self.drawn["side"]
    pads = [(length - len(text), 0) if side == "left" else (0, length - len(text))
            for text in texts]
    return (torch.stack([functional.pad(*pair) for pair in zip(texts, pads)]),
            torch.stack([functional.pad(torch.ones_like(text), pad)
                         for text, pad in zip(texts, pads)]))


def configuration(code, **attentions):
  return code.SynthesizerConfig(
      vocab_size=IDS, d_model=8, d_kv=2, d_ff=8, num_layers=1, num_heads=2,
      decoder_start_token_id=0, **attentions)


def alone(code):
  """Differences of a new layer's outputs from those of each text alone, by its parts.

  Masks of all dtypes have padding on either side, or are missing.
  """
  errors = {}
  for is_decoder, parts in itertools.product(
      (False, True), [*([part] for part in PARTS), PARTS[:3]]):
    config = configuration(code)
    config.is_decoder = is_decoder
    torch.manual_seed(1)
    layer = code.SynthesizerAttention(config, {"synthesizers": [
        {**part, "max_length": MAX_LENGTH} if part["name"] not in ("V", "Pattern") else
        part for part in parts]}, 0, False).eval()
    x = torch.randn(3, 7, 8)
    texts = [(0, 7), (3, 7), (0, 4)]
    wanted = [layer(x[i:i + 1, first:last])[0][0]
              for i, (first, last) in enumerate(texts)]
    index = torch.arange(7)
    mask = torch.stack([(first <= index) & (index < last) for first, last in texts])
    outputs = [layer(x, mask=mask.to(dtype))[0]
               for dtype in (torch.bool, torch.int64, torch.float32)]
    errors[f"{is_decoder} {parts}"] = max(
        [(output[i, first:last] - wanted[i]).abs().max().item() for output in outputs
         for i, (first, last) in enumerate(texts)] +
        [(layer(x)[0][0] - wanted[0]).abs().max().item()])
  return errors


def refused(code):
  """Messages about arguments that the model cannot take, by name."""
  config = configuration(code, encoder_attention="R", decoder_attention="R+V")
  model = code.SynthesizerForConditionalGeneration(config).eval()
  ids = torch.ones(2, 5, dtype=torch.long)
  sliding, full, cross = (
      transformers.Cache(layers=[layer]) for layer in (
          transformers.cache_utils.DynamicSlidingWindowLayer(3),
          transformers.cache_utils.DynamicLayer(),
          transformers.cache_utils.DynamicLayer()))
  static = transformers.StaticCache(config=config, max_cache_len=7)
  messages = {}
  for name, more in {
      "sliding": {"past_key_values": transformers.EncoderDecoderCache(sliding, cross)},
      "cross": {"past_key_values": transformers.EncoderDecoderCache(full, static)},
      "pairs": {"attention_mask": torch.ones(2, 5, 5)},
      "pairs of targets": {"decoder_attention_mask": torch.ones(2, 1, 4, 4)},
      "length": {"attention_mask": torch.ones(2, 4)}}.items():
    try:
      for _ in range(2):  # The second call finds the tokens of the first in the cache.
        model(input_ids=ids, decoder_input_ids=ids[:, :4], **more)
      messages[name] = None
    except ValueError as error:
      messages[name] = str(error)
  for name, attentions in {
      "key": {"encoder_atention": "R"}, "factors": {"decoder_attention": "R+FD"},
      "key of a layer": {"encoder_attention": {"synthesizers": [], "weigths": "sum"}},
      "weights": {"encoder_attention": {"synthesizers": [], "weights": "per_heads"}}
      }.items():
    try:
      messages[name] = code.SynthesizerForConditionalGeneration(
          configuration(code, **attentions))
    except ValueError as error:
      messages[name] = str(error)
  return messages


if __name__ == "__main__":
  main(*sys.argv[1:])
