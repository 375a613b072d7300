"""Compares graphs of ONNX with the model that they were exported from.

  PYTHON graphs.py OUTPUT CODE SPIECE PAGE

CODE holds modeling_synthesizer.py and to_onnx.py, SPIECE is a vocabulary, and PAGE the
program of docs/serving.md. The script prints a line of JSON with the differences.
"""

import importlib
import json
import pathlib
import shutil
import sys
import types
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import sentencepiece
import torch
import transformers

SIZE, MAX_LENGTH = 600, 20
# The parts of each block; together they are all.
BLOCKS = [
    [{"name": "V"}], [{"name": "R"}], [{"name": "R"}, {"name": "V"}],
    [{"name": "FR", "rank": 3}, {"name": "T"}],
    [{"name": "D", "use_bias": True}, {"name": "FD", "a": 5, "b": 4}],
    [{"name": "Pattern", "patterns": ["previous", "start"]},
     {"name": "Fix", "tile_length": 4}]]


def main(output, code, spiece, page):
  transformers.logging.set_verbosity_error()
  torch.manual_seed(1)
  package = types.ModuleType("exported")
  package.__path__ = [code]
  sys.modules["exported"] = package
  sys.path += [code, str(pathlib.Path(page).parent)]
  exporting = importlib.import_module("to_onnx")
  answering = importlib.import_module(pathlib.Path(page).stem)
  output = pathlib.Path(output)
  model = new_model(importlib.import_module("exported.modeling_synthesizer"))
  model.save_pretrained(output / "model")
  for file in pathlib.Path(code).glob("*_synthesizer.py"):
    shutil.copyfile(file, output / "model" / file.name)
  shutil.copyfile(spiece, output / "model" / "spiece.model")
  exporting.main([str(output / "model"), f"--output={output}/graphs"])
  exporting.main(
      [str(output / "model"), f"--output={output}/int8", "--dtype=int8"])
  graphs = load(output / "graphs")
  print(json.dumps({
      "errors": {str(sizes): difference(model, graphs, *sizes) for sizes in (
          (1, 1, 1), (1, 7, 9), (4, 9, 5), (2, MAX_LENGTH, MAX_LENGTH))},
      "states": [put.name for put in graphs[1].get_inputs() if "past" in put.name],
      "info": graphs[2], "greedy": greedy(model, graphs, answering.decode),
      "beams": beams(model, graphs, answering.decode),
      "too long": too_long(graphs, answering.decode),
      "int8 error": difference(model, load(output / "int8"), 4, 9, 5),
      "in int8": {name: quantized(model, output / "int8" / f"{name}.onnx")
                  for name in ("encoder", "step")},
      "bytes": sizes(exporting, model.__class__, model.config, output),
      "beyond": beyond(answering, output / "graphs", spiece),
      "matrices": [name for name, module in model.named_modules()
                   if isinstance(module, torch.nn.Linear)],
      **{folder: answering.answer(output / folder, ["a text", "another"], 5)
         for folder in ("graphs", "int8")}}))


def new_model(code):
  blocks = [{"relative_bias": "bias_shared", "synthesizers": [
      {**part, **({} if part["name"] in ("V", "Pattern") else
                  {"max_length": MAX_LENGTH})} for part in parts]} for parts in BLOCKS]
  model = code.SynthesizerForConditionalGeneration(code.SynthesizerConfig(
      vocab_size=SIZE, d_model=16, d_kv=4, d_ff=24, num_layers=len(blocks), num_heads=4,
      decoder_start_token_id=0, encoder_attention=blocks, decoder_attention=blocks))
  return model.eval()


def load(folder):
  return (*(onnxruntime.InferenceSession(folder / f"{name}.onnx")
            for name in ("encoder", "step")),
          json.loads((folder / "onnx.json").read_text()))


def inputs(batch, length):
  """Random ids and their mask; padding is on both sides of some rows."""
  random = np.random.RandomState(batch)
  ids, mask = random.randint(3, SIZE, (batch, length)), np.ones((batch, length), int)
  for row in range(1, batch):
    mask[row, :row] = 0
    mask[row, length - row // 2:] = 0
  return ids * mask, mask


def difference(model, graphs, batch, length, steps):
  """The largest difference of logits, divided by the largest logit."""
  encoder, step, _ = graphs
  ids, mask = inputs(batch, length)
  targets = np.random.RandomState(2).randint(3, SIZE, (batch, steps))
  with torch.no_grad():
    wanted = model(input_ids=torch.from_numpy(ids),
                   attention_mask=torch.from_numpy(mask),
                   decoder_input_ids=torch.from_numpy(targets)).logits.numpy()
  cross = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
  _, *names = [put.name for put in step.get_inputs()]
  feed = dict(zip(names, [mask, *cross]))
  past = {put.name: np.zeros((batch, put.shape[1], 0, put.shape[3]), np.float32)
          for put in step.get_inputs() if put.name.startswith("past.")}
  worst = 0
  for i in range(steps):
    logits, *states = step.run(None, {"ids": targets[:, i:i + 1], **feed, **past})
    past = dict(zip(past, states))
    worst = max(worst, float(abs(logits - wanted[:, i]).max()))
  return worst / float(abs(wanted).max())


def quantized(model, path):
  """The modules whose weights are int8 in a graph; None for what is no weight."""
  held = {weight.name: onnx.numpy_helper.to_array(weight)
          for weight in onnx.load(path).graph.initializer}
  weights = {name: module.weight.detach().numpy()
             for name, module in model.named_modules()
             if isinstance(module, torch.nn.Linear) or name == "shared"}
  modules = []
  for name, values in held.items():
    if values.dtype in (np.int8, np.uint8) and values.ndim > 1:
      zero, scale = (held[name.replace("_quantized", what)]
                     for what in ("_zero_point", "_scale"))
      restored = (values - zero.astype("float32")) * scale
      modules.append(next(
          (module for module, weight in weights.items()
           for x in (restored, restored.T) if x.shape == weight.shape
           and abs(x - weight).max() < abs(weight).max() / 100), None))
  return sorted(modules)


def sizes(exporting, cls, config, output):
  """The bytes of the graphs of a larger model, in float32 and then in int8."""
  block = {"synthesizers": [{"name": "R", "max_length": 40}, {"name": "V"}]}
  model = cls(config.__class__(
      vocab_size=4000, d_model=128, d_kv=32, d_ff=512, num_layers=1, num_heads=4,
      decoder_start_token_id=0, encoder_attention=block, decoder_attention=block))
  (output / "larger").mkdir()
  exporting.export(model.eval(), output / "larger")
  graphs = sorted((output / "larger").glob("*.onnx"))
  before = sum(graph.stat().st_size for graph in graphs)
  for graph in graphs:
    exporting.quantize(graph, 4000)
  return [before, sum(graph.stat().st_size for graph in graphs)]


def beyond(answering, folder, spiece):
  """The answer of ids of which two are no pieces and some come after the end."""
  size = len(sentencepiece.SentencePieceProcessor(spiece))
  ids = np.array([[9, size, 11, SIZE - 1, 1, 12]])
  with mock.patch.object(answering, "decode", lambda *_: (ids, None)):
    return answering.answer(folder, ["a text"])


def greedy(model, graphs, decode):
  """Whether the page's greedy ids are those of `generate`."""
  ids, mask = inputs(4, 9)
  ours, _ = decode(*graphs, ids, mask, 8)
  theirs = model.generate(
      input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask),
      num_beams=1, do_sample=False, max_new_tokens=8)[:, 1:].numpy()
  return bool((ours == theirs).all())


def beams(model, graphs, decode):
  """How much two steps with all beams miss the best of all pairs of ids."""
  ids, mask = inputs(1, 7)
  _, score = decode(*graphs, ids, mask, 2, beams=SIZE)
  pairs = torch.stack([torch.zeros(SIZE, dtype=torch.long), torch.arange(SIZE)], 1)
  with torch.no_grad():
    logits = model(input_ids=torch.from_numpy(ids).expand(SIZE, -1),
                   decoder_input_ids=pairs).logits.log_softmax(-1)
  second = logits[:, 1].amax(-1)
  second[1] = 0  # After the end.
  return float(abs((logits[0, 0] + second).max() - score[0]))


def too_long(graphs, decode):
  """Messages about inputs and steps beyond `max_length`."""
  messages = []
  for length, steps in ((MAX_LENGTH + 1, 2), (3, MAX_LENGTH + 1)):
    try:
      decode(*graphs, *inputs(1, length), steps)
    except ValueError as error:
      messages.append(str(error))
  return messages


if __name__ == "__main__":
  main(*sys.argv[1:])
