"""Measures exported attention in PyTorch beside Hugging Face's T5.

  PYTHON pytorch_speed.py --json=results.json
  PYTHON pytorch_speed.py --json=results.json --tokens=2048 --layers=3 --d_model=256 ...

PYTHON has PyTorch and Transformers. The script runs on a GPU if there is one. It writes
a row for each measurement, and goes on where one fails. Weights are random; attentions
and T5 take turns. `pytorch_table.py` makes tables of the rows. It uses nothing of this
package but modeling_synthesizer.py.
"""

import argparse
from collections.abc import Callable
import importlib
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
import traceback
import types
from typing import Any

import torch
import transformers

# The folder of the model's files, which make up a package wherever they are.
_FILES = (pathlib.Path(__file__).resolve().parent.parent /
          "tools/hugging_face/pytorch")
_PACKAGE = sys.modules["exported"] = types.ModuleType("exported")
_PACKAGE.__path__ = [os.environ.get("SYNTHESIZER_FILES", str(_FILES))]
modeling_synthesizer = importlib.import_module("exported.modeling_synthesizer")

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
  """Parses flags and measures."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--json", required=True, metavar="FILE", help="where to write the rows")
  add("--rows", default="T5,V,R,FR,D,R+V,D+V", help="T5 and notations")
  add("--measures", default="equal,train,decode,compile")
  add("--lengths", default="512,2048", help="of the inputs")
  add("--dtypes", default="float32,bfloat16")
  for name, value in (("vocabulary", 32128), ("d_model", 512), ("d_kv", 64),
                      ("d_ff", 2048), ("layers", 6), ("heads", 8), ("targets", 128),
                      ("new_tokens", 64), ("decode_batch", 16), ("repeats", 12)):
    add(f"--{name}", type=int, default=value)
  add("--tokens", type=int, default=16384, help="inputs of a training batch")
  add("--seconds", type=float, default=1e9, help="measure nothing after these")
  add("--threads", type=int, help="of PyTorch on CPUs")
  Measurements(parser.parse_args()).run()


class Measurements:
  """All measurements, and the rows that they have made."""

  def __init__(self, args: argparse.Namespace):
    self._args, self._start, self._rows = args, time.time(), []
    transformers.logging.set_verbosity_error()
    torch.backends.cuda.matmul.allow_tf32 = False
    if args.threads:
      torch.set_num_threads(args.threads)

  def run(self) -> None:
    """Makes all measurements that the flags name, as far as there is time."""
    args = self._args
    measures, names = args.measures.split(","), self._names()
    lengths = list(map(int, args.lengths.split(",")))
    dtypes = args.dtypes.split(",")
    self._add(
        part="machine", torch=torch.__version__, transformers=transformers.__version__,
        card=torch.cuda.get_device_name() if _DEVICE == "cuda" else "CPU",
        threads=torch.get_num_threads(), sizes=vars(args))
    if "equal" in measures:
      for name, length in itertools.product(names, lengths):
        self._try(self._equal, name=name, length=length)
    for length, dtype in itertools.product(lengths, dtypes):
      if "train" in measures:
        self._take_turns(self._trainer, "train", names, length, dtype)
    for length, dtype in itertools.product(lengths, dtypes):
      if "decode" in measures:
        self._take_turns(self._decoder, "decode", names, length, dtype)
    if "compile" in measures:
      for name in [n for n in names if n.startswith("T5") or n == "R+V"][-2:]:
        self._take_turns(self._trainer, "train", [name], lengths[0], dtypes[-1], True)

  def _names(self):
    """The rows; T5 stands for each of its implementations of attention."""
    eager = ["T5 eager", "T5 sdpa"] if int(
        transformers.__version__.split(".")[0]) >= 5 else ["T5 eager"]
    return [name for row in self._args.rows.split(",")
            for name in (eager if row == "T5" else [row])]

  def _add(self, **row):
    self._rows.append(row)
    print(json.dumps(row), flush=True)
    pathlib.Path(self._args.json).write_text(json.dumps(self._rows, indent=1))

  def _try(self, function, **of):
    """Returns what a function returns, or None after a row that names the failure."""
    if time.time() - self._start > self._args.seconds:
      self._add(part=function.__name__, skipped="no time left", **of)
      return None
    try:
      return function(**of)
    except Exception:  # The other measurements go on.
      traceback.print_exc()
      self._add(part=function.__name__, error=traceback.format_exc()[-800:], **of)
      return None
    finally:
      if _DEVICE == "cuda":
        torch.cuda.empty_cache()

  def _equal(self, name, length):
    """Compares logits on the GPU with those of the CPU, with the same weights."""
    model = self._model(name, length, "cpu", dropout=0.0).eval()
    data = self._batch(length, 2, "cpu")
    with torch.no_grad():
      expected = model(**data).logits
      model.to(_DEVICE)
      data = {key: value.to(_DEVICE) for key, value in data.items()}
      found = {"float32": model(**data).logits}
      with torch.autocast(_DEVICE, torch.bfloat16):
        found["autocast"] = model(**data).logits
      found["bfloat16"] = model.to(torch.bfloat16)(**data).logits
    self._add(part="equal", name=name, length=length,
              largest=expected.abs().max().item(),
              **{key: (value.float().cpu() - expected).abs().max().item()
                 for key, value in found.items()})

  def _take_turns(self, make, part, names, length, dtype, compiled=False):
    """Measures all rows in turns: on a GPU one after another, to save memory."""
    groups = [[name] for name in names] if _DEVICE == "cuda" else [names]
    for group in groups:
      programs = {name: self._try(make, name=name, length=length, dtype=dtype,
                                  compiled=compiled) for name in group}
      programs = {name: program for name, program in programs.items() if program}
      times: dict[str, list[float]] = {name: [] for name in programs}
      for _ in range(self._args.repeats if part == "train" else 4):
        for name, (run, _) in programs.items():
          times[name].append(_seconds(run))
      for name, (_, facts) in programs.items():
        low, median, high = statistics.quantiles(
            [facts["count"] / t for t in times[name]], n=4, method="inclusive")
        self._add(part=part, name=name, length=length, dtype=dtype, compiled=compiled,
                  per_second=[low, median, high], **facts)

  def _trainer(self, name, length, dtype, compiled):
    """Returns (a function that trains a step, facts); dropout is T5's 0.1."""
    model = self._model(name, length, _DEVICE).train()
    batch = max(1, self._args.tokens // length)
    data = self._batch(length, batch, _DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=_DEVICE == "cuda")
    called = torch.compile(model) if compiled else model

    def step():
      optimizer.zero_grad(set_to_none=True)
      with torch.autocast(_DEVICE, torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = called(**data).loss
      loss.backward()
      optimizer.step()

    if _DEVICE == "cuda":
      torch.cuda.reset_peak_memory_stats()
    for _ in range(4 if _DEVICE == "cuda" else 1):
      step()
    return step, {
        "count": 1, "batch": batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "gib": (torch.cuda.max_memory_allocated() / 2**30 if _DEVICE == "cuda"
                else None)}

  def _decoder(self, name, length, dtype, compiled):
    """Returns (a function that decodes greedily, facts)."""
    model = self._model(name, length, _DEVICE).eval().to(getattr(torch, dtype))
    data = self._batch(length, self._args.decode_batch, _DEVICE)
    del data["labels"]

    @torch.inference_mode()
    def decode(count=self._args.new_tokens):
      model.generate(**data, max_new_tokens=count, min_new_tokens=count,
                     do_sample=False, num_beams=1)

    decode(4)
    return decode, {"count": self._args.decode_batch * self._args.new_tokens,
                    "batch": self._args.decode_batch}

  def _model(self, name, length, device, dropout=0.1):
    args = self._args
    torch.manual_seed(0)
    sizes = {"vocab_size": args.vocabulary, "d_model": args.d_model, "d_kv": args.d_kv,
             "d_ff": args.d_ff, "num_layers": args.layers, "num_heads": args.heads,
             "dropout_rate": dropout, "decoder_start_token_id": 0}
    with torch.device(device):
      if name.startswith("T5"):
        config: Any = transformers.T5Config(
            **sizes, attn_implementation=name.split()[1])
        return transformers.T5ForConditionalGeneration(config)
      config = modeling_synthesizer.SynthesizerConfig(
          **sizes, encoder_attention=_attention(name, length),
          decoder_attention=_attention(name, max(args.targets, args.new_tokens) + 1))
      return modeling_synthesizer.SynthesizerForConditionalGeneration(config)

  def _batch(self, length, size, device):
    """Random tokens; a quarter of the first row is padding."""
    generator = torch.Generator().manual_seed(1)
    inputs, labels = (torch.randint(2, self._args.vocabulary, (size, n),
                                    generator=generator)
                      for n in (length, self._args.targets))
    mask = torch.ones_like(inputs)
    mask[0, length * 3 // 4:] = 0
    data = {"input_ids": inputs * mask, "attention_mask": mask, "labels": labels}
    return {key: value.to(device) for key, value in data.items()}


def _attention(notation, length):
  parts = [{"name": name, **({} if name == "V" else {"max_length": length})}
           for name in notation.split("+")]
  return {"synthesizers": parts, "relative_bias": "bias_shared"}


def _seconds(run: Callable[[], None]) -> float:
  """Runs a function, and returns how long it took."""
  wait = torch.cuda.synchronize if _DEVICE == "cuda" else lambda: None
  wait()
  begin = time.perf_counter()
  run()
  wait()
  return time.perf_counter() - begin


if __name__ == "__main__":
  os.environ.setdefault("HF_HUB_OFFLINE", "1")
  main()
