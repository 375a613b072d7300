"""Exports a model in PyTorch as two graphs of ONNX, for servers without PyTorch.

  python tools/hugging_face/pytorch/to_onnx.py FOLDER --output=DIR [--dtype=int8]

FOLDER is what `hugging_face export` wrote, or what was trained from it. DIR gets

  encoder.onnx  input_ids, attention_mask <int64>[batch, length] -> cross.*, the keys
                and values of cross-attention <float32>[batch, heads, length, d_kv]
  step.onnx     ids <int64>[batch, 1], attention_mask, cross.*, past.* -> logits
                <float32>[batch, vocab_size], present.*. The past of the first step is
                empty: <float32>[batch, heads, 0, channels].
  onnx.json     max_inputs and max_targets, the longest sequences; the ids of the
                decoder's first token, of the end and of padding

A layer without V needs no keys, so it has only past.N.values. With --dtype=int8 the
embedding and the matrices of all linear layers are int8; tables of positions, such as
R, stay float32. This program needs torch, transformers and onnxscript, and for int8
onnxruntime.
"""

import argparse
import importlib
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from torch import nn
import transformers
from transformers.modeling_outputs import BaseModelOutput

# Files of a tokenizer, which DIR gets, too.
_TOKENIZER = ("spiece.model", "tokenizer.json", "tokenizer_config.json")


class Past(transformers.DynamicCache):
  """The keys and values of self-attention; keys only where a layer has V.

  Attributes:
    states: for each layer a list of <float32>[batch, heads, past, channels]: the keys
      if there are any, and the values.
  """

  def __init__(self, states: list[list[torch.Tensor]]):
    super().__init__()
    self.states = states

  def get_seq_length(self, layer_idx: int = 0) -> int:
    return self.states[layer_idx][-1].shape[2]

  def update(self, key_states, value_states, layer_idx, cache_kwargs=None):
    """Appends new tokens to a layer; returns all keys and values."""
    states = self.states[layer_idx]
    new = (key_states, value_states)[-len(states):]
    self.states[layer_idx] = states = [
        torch.cat(pair, 2) for pair in zip(states, new)]
    return states[0] if len(states) == 2 else key_states, states[-1]


class Encoder(nn.Module):
  """The encoder, and the keys and values of cross-attention, which stay the same."""

  def __init__(self, model: transformers.PreTrainedModel):
    super().__init__()
    self.model = model

  def forward(self, input_ids, attention_mask):
    """Returns a list of keys and values, <float32>[batch, heads, length, d_kv]."""
    x = self.model.encoder(
        input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    layers = [block.layer[1].EncDecAttention for block in self.model.decoder.block]
    return [projection(x).unflatten(-1, (layer.n_heads, -1)).transpose(1, 2)
            for layer in layers for projection in (layer.k, layer.v)]


class Step(nn.Module):
  """One step of the decoder."""

  def __init__(self, model: transformers.PreTrainedModel):
    super().__init__()
    self.model, self.layers = model, len(model.decoder.block)
    self.has_keys = [has_keys(block) for block in model.decoder.block]

  def forward(self, ids, attention_mask, *states):
    """Returns the logits <float32>[batch, vocab_size], and the states of all tokens."""
    cross, past = states[:2 * self.layers], iter(states[2 * self.layers:])
    own = Past([[next(past) for _ in range(1 + keys)] for keys in self.has_keys])
    inputs = transformers.DynamicCache()
    for layer in range(self.layers):
      inputs.update(*cross[2 * layer:2 * layer + 2], layer)
    width = self.model.config.d_model
    logits = self.model(
        encoder_outputs=BaseModelOutput(  # In the place of what `cross` holds.
            attention_mask[..., None].float().expand(-1, -1, width)),
        attention_mask=attention_mask, decoder_input_ids=ids,
        past_key_values=transformers.EncoderDecoderCache(own, inputs)).logits
    return [logits.squeeze(1), *(state for layer in own.states for state in layer)]


def has_keys(block: nn.Module) -> bool:
  """Whether the self-attention of a block has V among its parts, or is T5's."""
  return bool(_with_keys(block.layer[0].SelfAttention))


def _with_keys(layer):
  """Those parts of a layer that have keys; T5's layer is its only part."""
  return [part for part in getattr(layer, "synthesizers", [layer])
          if hasattr(part, "k")]


def longest(stack: nn.Module) -> int | None:
  """The longest sequence that the tables of a stack have, or None for any."""
  lengths = [part.max_length for block in stack.block
             for part in getattr(block.layer[0].SelfAttention, "synthesizers", ())
             if hasattr(part, "max_length") and not part.tile]
  return min(lengths, default=None)


@torch.no_grad()
def export(model: transformers.PreTrainedModel, folder: pathlib.Path) -> None:
  """Writes both graphs and onnx.json.

  Args:
    model: an encoder and decoder, `SynthesizerForConditionalGeneration` or T5's.
    folder: an existing folder.
  """
  step, encoder, config = Step(model).eval(), Encoder(model).eval(), model.config
  batch, length, past = 3, 4, 5
  attention_mask = torch.ones(batch, length, dtype=torch.long)
  tokens = torch.ones_like(attention_mask)
  names = [f"cross.{layer}.{kind}" for layer in range(step.layers)
           for kind in ("keys", "values")]
  _write(encoder, (tokens, attention_mask), ["input_ids", "attention_mask"],
         names, [{1: "length"}] * 2, folder / "encoder.onnx")
  own = {f"{layer}.{kind}": torch.zeros(
      batch, *_sizes(model.decoder.block[layer], past, kind))
         for layer, keys in enumerate(step.has_keys)
         for kind in ("keys", "values")[not keys:]}
  cross = encoder(tokens, attention_mask)
  _write(step, (tokens[:, :1], attention_mask, *cross, *own.values()),
         ["ids", "attention_mask", *names, *(f"past.{name}" for name in own)],
         ["logits", *(f"present.{name}" for name in own)],
         [{}, {1: "length"}] + [{2: "length"}] * len(cross) + [{2: "past"}] * len(own),
         folder / "step.onnx")
  (folder / "onnx.json").write_text(json.dumps({
      "max_inputs": longest(model.encoder), "max_targets": longest(model.decoder),
      "start": config.decoder_start_token_id, "end": config.eos_token_id,
      "pad": config.pad_token_id}, indent=2) + "\n")


def _sizes(block, past, kind):
  """The shape of the keys or values of a block's self-attention, without batch."""
  layer = block.layer[0].SelfAttention
  heads = getattr(layer, "heads", None) or layer.n_heads
  values = layer.v.out_features // heads
  return heads, past, values * (len(_with_keys(layer)) if kind == "keys" else 1)


def _write(module, args, inputs, outputs, dynamic, path):
  shapes = [{0: torch.export.Dim.DYNAMIC,
             **dict.fromkeys(axes, torch.export.Dim.DYNAMIC)} for axes in dynamic]
  program = torch.onnx.export(
      module, args, dynamo=True, input_names=inputs, output_names=outputs,
      dynamic_shapes=(*shapes[:2], tuple(shapes[2:])) if shapes[2:] else tuple(shapes),
      external_data=False, verbose=False)
  program.save(str(path), external_data=False)


def quantize(path: pathlib.Path, words: int) -> None:
  """Makes the embedding and the matrices of linear layers int8, in place.

  Products then quantize their inputs as they come. Nothing else changes: a table of
  positions passes through other operations before it meets a product.

  Args:
    path: a graph.
    words: the rows of the embedding.
  """
  import onnx
  from onnxruntime import quantization
  from onnxruntime.quantization import shape_inference

  # It transposes constants, so that products take the matrices themselves.
  shape_inference.quant_pre_process(path, path, skip_symbolic_shape=True)
  graph = onnx.load(path).graph
  shapes = {weight.name: list(weight.dims) for weight in graph.initializer}
  nodes = [node.name for node in graph.node
           if node.op_type == "MatMul" and len(shapes.get(node.input[1], ())) == 2
           or node.op_type == "Gather" and shapes.get(node.input[0], [0])[0] == words]
  quantization.quantize_dynamic(
      path, path, op_types_to_quantize=["MatMul", "Gather"], nodes_to_quantize=nodes,
      per_channel=True, weight_type=quantization.QuantType.QInt8)


def main(argv: list[str] | None = None) -> None:
  """Parses flags, and exports."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", help="a folder of an encoder and decoder")
  parser.add_argument("--output", required=True, help="the folder to write, a new one")
  parser.add_argument("--dtype", choices=("float32", "int8"), default="float32",
                      help="of matrices and the embedding (default: float32)")
  args = parser.parse_args(argv)
  try:
    run(pathlib.Path(args.folder), pathlib.Path(args.output), args.dtype)
  except (OSError, ValueError) as error:
    sys.exit(f"to_onnx: {error}")
  print(f"Wrote {args.output}.")


def run(folder: pathlib.Path, output: pathlib.Path, dtype: str = "float32") -> None:
  """Exports a folder.

  Args:
    folder: what to export.
    output: the folder to write.
    dtype: "float32" or "int8".

  Raises:
    ValueError: the folder holds no encoder and decoder, `output` is not new, or a
      package is missing.
  """
  if output.exists():
    raise ValueError(f"--output is {str(output)!r}, which is there; name a new folder.")
  if not (folder / "config.json").is_file():
    raise ValueError(f"there is no config.json in {str(folder)!r}; name a folder that "
                     "`hugging_face export` or save_pretrained wrote.")
  for package in ("onnxscript", *(["onnxruntime"] if dtype == "int8" else [])):
    try:
      importlib.import_module(package)
    except ImportError as error:
      raise ValueError(f"--dtype={dtype} needs {package}, which is not here; install "
                       f"it by `pip install {package}`.") from error
  config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
  if not config.is_encoder_decoder:
    raise ValueError(f"{str(folder)!r} holds an encoder alone; name a folder with an "
                     "encoder and decoder.")
  model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      folder, trust_remote_code=True, dtype=torch.float32)
  output.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=output.parent) as other:
    new = pathlib.Path(other) / output.name
    new.mkdir()
    export(model, new)
    for graph in new.glob("*.onnx") if dtype == "int8" else ():
      quantize(graph, config.vocab_size)
    for name in _TOKENIZER:
      if (folder / name).is_file():
        shutil.copyfile(folder / name, new / name)
    new.rename(output)


if __name__ == "__main__":
  main()
