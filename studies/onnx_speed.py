"""Measures exported graphs of ONNX beside T5 in CTranslate2, in int8 on one thread.

  PYTHON onnx_speed.py FOLDER
  PYTHON onnx_speed.py FOLDER --rows=R,R+V --batches=1,16 --rounds=27 --d_model=512
      --d_kv=64 --d_ff=2048 --num_heads=8 --num_layers=6 --vocab_size=32128 ...

PYTHON has torch, transformers 4, onnxscript, onnxruntime, sentencepiece, protobuf and
ctranslate2. The models have random weights, and T5-small's sizes if none are given;
FOLDER keeps them for the next call, which takes the same sizes. The program of
docs/serving.md decodes greedily to the full length. In each round all take a turn, in
another order; a ratio is that of two turns of a round.
"""

import argparse
import json
import pathlib
import random
import re
import statistics
import sys
import time

import ctranslate2
import numpy as np
import onnxruntime
import torch
import transformers

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(_ROOT / "tools/hugging_face/pytorch"), str(_ROOT / "studies/peers")]

import pieces  # noqa: E402
import to_onnx  # noqa: E402
import write  # noqa: E402

PEER = "CTranslate2, V"
SENTINELS = 128  # The last ids, which no text has.


def main() -> None:
  """Parses flags, measures and prints the table."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", type=pathlib.Path, help="for the models")
  for name, value in (("rows", "V,R,R+V"), ("batches", "1,16"), ("dtype", "int8")):
    parser.add_argument(f"--{name}", default=value)
  for name, count in (("rounds", 27), ("inputs", 64), ("outputs", 64)):
    parser.add_argument(f"--{name}", type=int, default=count)
  for name, size in write.SIZES.items():
    parser.add_argument(f"--{name}", type=int, default=size)
  args = parser.parse_args()
  transformers.logging.set_verbosity_error()
  torch.manual_seed(0)
  args.folder.mkdir(exist_ok=True, parents=True)
  programs = {PEER: peer(args.folder / "T5", args)}
  programs.update({name: exported(args.folder / name.replace("+", "_"), name, args)
                   for name in args.rows.split(",")})
  batches = list(map(int, args.batches.split(",")))
  turns = [(name, batch) for name in programs for batch in batches]
  seconds: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
  for number in range(args.rounds + 1):  # The first warms up.
    random.Random(number).shuffle(turns)
    for name, batch in turns:
      ids = np.random.RandomState(batch).randint(
          3, args.vocab_size - SENTINELS, (batch, args.inputs))
      begin = time.perf_counter()
      programs[name](ids)
      if number:
        seconds[name, batch].append(time.perf_counter() - begin)
  print(f"| {args.dtype} | batch | tokens/s | times CTranslate2 [range] |")
  print("|---|---|---|---|")
  for name in programs:
    for batch in batches:
      took = seconds[name, batch]
      ratios = [base / own for base, own in zip(seconds[PEER, batch], took)]
      speed = batch * args.outputs / statistics.median(took)
      print(f"| {name} | {batch} | {speed:,.0f} | {statistics.median(ratios):.2f} "
            f"[{min(ratios):.2f}, {max(ratios):.2f}] |")


def sizes(args):
  """The sizes of a model by their names; those that are None are left out."""
  return {name: getattr(args, name) for name in write.SIZES if getattr(args, name)}


def exported(folder, notation, args):
  """Returns a function that decodes a batch of ids by graphs of ONNX."""
  graphs = folder / args.dtype
  if not graphs.is_dir():
    write.run(folder / "files", notation, **sizes(args))
    config = transformers.AutoConfig.from_pretrained(
        folder / "files", trust_remote_code=True)
    transformers.AutoModelForSeq2SeqLM.from_config(
        config, trust_remote_code=True).save_pretrained(folder / "model")
    to_onnx.run(folder / "model", graphs, args.dtype)
  [page] = [code for code in re.findall(
      r"```python\n(.*?)```", (_ROOT / "docs/serving.md").read_text(), re.DOTALL)
            if "def decode(" in code]
  program = {"__name__": "page"}
  exec(page, program)
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = 1
  encoder, step = (onnxruntime.InferenceSession(graphs / f"{name}.onnx", options)
                   for name in ("encoder", "step"))
  info = {**json.loads((graphs / "onnx.json").read_text()), "end": -1}
  return lambda ids: program["decode"](
      encoder, step, info, ids, np.ones_like(ids), args.outputs)


def peer(folder, args):
  """Returns a function that decodes a batch of ids by CTranslate2."""
  if not folder.is_dir():
    transformers.T5ForConditionalGeneration(transformers.T5Config(
        **sizes(args), decoder_start_token_id=0)).save_pretrained(folder)
    pieces.write(str(folder / "spiece.model"), args.vocab_size - SENTINELS)
    transformers.T5Tokenizer(
        str(folder / "spiece.model"), extra_ids=SENTINELS).save_pretrained(folder)
    ctranslate2.converters.TransformersConverter(str(folder)).convert(
        str(folder / "converted"))
  translator = ctranslate2.Translator(
      str(folder / "converted"), compute_type=args.dtype, intra_threads=1,
      inter_threads=1)
  return lambda ids: translator.translate_batch(
      [[f"p{i}" for i in row] for row in ids], beam_size=1,
      max_decoding_length=args.outputs, min_decoding_length=args.outputs)


if __name__ == "__main__":
  main()
