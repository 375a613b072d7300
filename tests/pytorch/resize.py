"""Makes the tables of layers and models longer and shorter.

  PYTHON resize.py FOLDER OUTPUT

FOLDER holds modeling_synthesizer.py. The script prints a line of JSON: `tables`, the
largest difference of new tables from those that NumPy interpolates, by part; `models`,
how much a resized model changes by being saved and loaded; and the messages about what
is `refused`.
"""

import importlib
import json
import pathlib
import sys
import types

import numpy as np
import torch
import transformers

OLD, LENGTHS = 6, (12, 11, 4)
PARTS = {
    "R": {}, "Fix": {}, "FR": {"rank": 3}, "T": {}, "D": {"use_bias": True},
    "FD": {"a": 3, "b": 2}, "Pattern": None, "V": None}


def main(folder, output):
  transformers.logging.set_verbosity_error()
  package = types.ModuleType("exported")
  package.__path__ = [str(pathlib.Path(folder).resolve())]
  sys.modules["exported"] = package
  code = importlib.import_module("exported.modeling_synthesizer")
  for file in pathlib.Path(folder).glob("*_synthesizer.py"):
    (pathlib.Path(output) / file.name).write_bytes(file.read_bytes())
  torch.manual_seed(1)
  print(json.dumps({
      "tables": {f"{name} {is_decoder}": tables(code, name, is_decoder)
                 for name in PARTS for is_decoder in (False, True)},
      "models": {name: saved(code, part(name), output) for name in PARTS},
      "refused": refused(code, output)}))


def part(name):
  more = PARTS[name]
  return {"name": name, **({} if more is None else {"max_length": OLD, **more})}


def configuration(code, attention):
  attention = {"synthesizers": [attention], "relative_bias": "bias_shared"}
  return code.SynthesizerConfig(
      vocab_size=9, d_model=8, d_kv=2, d_ff=8, num_layers=1, num_heads=2,
      decoder_start_token_id=0, encoder_attention=attention,
      decoder_attention=attention)


def interpolated(table, axis, count):
  """`np.interp` along an axis."""
  old = np.arange(table.shape[axis])
  new = np.arange(count) * (len(old) - 1) / (count - 1)
  return np.apply_along_axis(lambda row: np.interp(new, old, row), axis, table)


def expected(name, before, length):
  """The new tables, in NumPy."""
  if name == "T" and "T_after" in before:
    # From the farthest key before the query to the farthest one after it.
    offsets = interpolated(np.concatenate(
        [before["T"][:, ::-1], before["T_after"]], 1), 1, 2 * length - 1)
    return {"T": offsets[:, length - 1::-1], "T_after": offsets[:, length:]}
  axes = {"R": [1, 2], "R1": [1], "R2": [1], "T": [1], "W2": [2], "b2": [1], "WA": [2]}
  after = dict(before)
  for table in before:
    for axis in axes.get(table, []):
      after[table] = interpolated(after[table], axis,
                                  length // 2 if table == "WA" else length)
  return after


def tables(code, name, is_decoder):
  config = configuration(code, part(name))
  config.is_decoder = is_decoder
  differences = []
  for length in LENGTHS:
    if name == "FD" and length % 2:
      continue
    layer = code.SynthesizerAttention(config, {"synthesizers": [part(name)]}, 0, False)
    layer(torch.randn(1, OLD, 8))
    wanted = expected(name, values(layer), length)
    layer.resize(length)
    after = values(layer)
    assert wanted.keys() == after.keys()
    differences += [float(abs(wanted[table] - after[table]).max()) for table in after]
    layer(torch.randn(1, length, 8))
  return max(differences, default=0.)


def values(layer):
  return {name: parameter.detach().numpy()
          for name, parameter in layer.synthesizers[0].named_parameters()}


def saved(code, attention, folder):
  """The difference of a resized model from itself after it was saved and loaded."""
  model = code.SynthesizerForConditionalGeneration(configuration(code, attention))
  model.eval().resize(2 * OLD)
  folder = pathlib.Path(folder) / attention["name"]
  model.save_pretrained(folder)
  loaded = code.SynthesizerForConditionalGeneration.from_pretrained(folder).eval()
  ids = torch.arange(2 * OLD)[None] % 9
  with torch.no_grad():
    logits, again = (one(input_ids=ids, decoder_input_ids=ids).logits
                     for one in (model, loaded))
  return float((logits - again).abs().max())


def message(function, *args, **kwargs):
  try:
    return str(function(*args, **kwargs))
  except ValueError as error:
    return str(error)


def refused(code, folder):
  model = code.SynthesizerForConditionalGeneration
  folder = pathlib.Path(folder) / "R"
  longer = {"synthesizers": [{"name": "R", "max_length": 99}]}
  mixed = configuration(code, part("FD"))
  layer = code.SynthesizerAttention(
      mixed, {"synthesizers": [part("R"), part("FD")]}, 0, False)
  messages = {
      "loaded": message(model.from_pretrained, folder, max_length=99),
      "by its class": message(transformers.AutoModelForSeq2SeqLM.from_pretrained,
                              folder, max_length=99, trust_remote_code=True),
      "mistyped": message(model.from_pretrained, folder, encoder_atention="R"),
      "another shape": message(model.from_pretrained, folder, encoder_attention=longer),
      "multiple": message(layer.resize, 9), "length": message(layer.resize, 1),
      "parameter": message(model, configuration(code, {"name": "R", "weights": "sum"})),
      "of V": message(model, configuration(code, {"name": "V", "max_length": 3})),
      "too long": message(layer, torch.zeros(1, 7, 8))}
  assert layer.synthesizers[0].R.shape[-1] == OLD  # What is refused changes nothing.
  return messages


if __name__ == "__main__":
  main(*sys.argv[1:])
