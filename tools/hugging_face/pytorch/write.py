"""Writes the folder of a new model, without weights, for a notation and sizes.

  python tools/hugging_face/pytorch/write.py --attention=R+V --output=DIR
      [--d_model=512] [--d_kv=64] [--d_ff=2048] [--num_heads=8] [--num_layers=6]
      [--num_decoder_layers=6] [--vocab_size=32128] [--max_length=512] [--rank=8]

DIR gets config.json, generation_config.json, modeling_synthesizer.py and
configuration_synthesizer.py, from which Transformers make the model:

  config = AutoConfig.from_pretrained(DIR, trust_remote_code=True)
  model = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=True)

`AutoModel` makes the encoder alone, and `AutoModelForSequenceClassification` a
classifier. A notation joins V, R, Fix, FR, T, D, FD and Pattern by +; R/V is R in the
encoder and V in the decoder. This program needs torch and transformers, and nothing
else of this package. The sizes are those of T5-small if they are not given.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers

_HERE = pathlib.Path(__file__).parent

# The sizes of T5-small.
SIZES = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_heads": 8, "num_layers": 6,
         "num_decoder_layers": None, "vocab_size": 32128}

# What Transformers load from the folder.
AUTO = {"AutoConfig": "configuration_synthesizer.SynthesizerConfig",
        "AutoModel": "modeling_synthesizer.SynthesizerEncoderModel",
        "AutoModelForSeq2SeqLM":
            "modeling_synthesizer.SynthesizerForConditionalGeneration",
        "AutoModelForSequenceClassification":
            "modeling_synthesizer.SynthesizerForSequenceClassification"}

_IDS = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


def describe(notation: str, max_length: int, rank: int = 8) -> dict:
  """Returns the description of an attention, as configuration_synthesizer.py says.

  Args:
    notation: such as "R+V".
    max_length: the longest sequence.
    rank: of FR.
  """
  parts = []
  for name in notation.split("+"):
    part: dict = {"name": name}
    if name not in ("V", "Pattern"):
      part["max_length"] = max_length
    if name == "FR":
      part["rank"] = rank
    if name == "FD":  # As in Mesh TensorFlow: two factors that are near to each other.
      part["a"] = max(n for n in range(1, int(max_length**0.5) + 1)
                      if max_length % n == 0)
      part["b"] = max_length // part["a"]
    parts.append(part)
  return {"synthesizers": parts, "relative_bias": "bias_shared"}


def run(output: pathlib.Path, attention: str, max_length: int = 512, rank: int = 8,
        **sizes: int | None) -> int:
  """Writes a folder; returns the number of the model's parameters.

  Args:
    output: the folder, a new or an empty one.
    attention: a notation, or two with "/" between them, of encoder and decoder.
    max_length: the longest sequence, in tokens.
    rank: of FR.
    **sizes: values for keys of `SIZES`.

  Raises:
    ValueError: there is no such attention or size, or the folder has files.
  """
  for name, size in {"max_length": max_length, "rank": rank, **sizes}.items():
    if size is not None and size < 1:
      raise ValueError(f"--{name} is {size}; give a positive integer.")
  if output.exists() and (not output.is_dir() or any(output.iterdir())):
    raise ValueError(f"--output is {str(output)!r}, which is there and not empty; name "
                     "a new folder.")
  stacks = attention.split("/")
  if len(stacks) > 2:
    raise ValueError(f"--attention is {attention!r}; give one notation, or that of the "
                     "encoder and that of the decoder with one / between them.")
  described = [describe(notation, max_length, rank) for notation in stacks]
  config = {
      **SIZES, **sizes, **_IDS, "model_type": "synthesizer", "auto_map": AUTO,
      "architectures": [AUTO["AutoModelForSeq2SeqLM"].partition(".")[2]],
      "encoder_attention": described[0], "decoder_attention": described[-1]}
  with tempfile.TemporaryDirectory() as other:
    new = pathlib.Path(other) / "synthesizer_pytorch"
    new.mkdir()
    (new / "config.json").write_text(_text(config))
    (new / "generation_config.json").write_text(_text(_IDS))
    for file in sorted(_HERE.glob("*_synthesizer.py")):
      shutil.copyfile(file, new / file.name)
    loaded = transformers.AutoConfig.from_pretrained(new, trust_remote_code=True)
    with torch.device("meta"):  # It has shapes and no values.
      model = transformers.AutoModelForSeq2SeqLM.from_config(
          loaded, trust_remote_code=True)
    shutil.copytree(new, output, dirs_exist_ok=True)
  return model.num_parameters()


def _text(values):
  given = {key: value for key, value in sorted(values.items()) if value is not None}
  return json.dumps(given, indent=2) + "\n"


def main(argv: list[str] | None = None) -> None:
  """Parses flags, and writes."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--attention", required=True, help="such as R+V, or R/V")
  parser.add_argument("--output", required=True, type=pathlib.Path,
                      help="the folder to write, which is new or empty")
  parser.add_argument("--max_length", type=int, default=512,
                      help="the longest sequence, in tokens (default: 512)")
  parser.add_argument("--rank", type=int, default=8, help="of FR (default: 8)")
  for name, size in SIZES.items():
    parser.add_argument(f"--{name}", type=int, default=size,
                        help=f"(default: {size or 'num_layers'})")
  args = vars(parser.parse_args(argv))
  try:
    count = run(**args)
  except (OSError, ValueError) as error:
    sys.exit(f"write: {error}")
  print(f"Wrote {args['output']}: {args['attention']}, {count:,} parameters.")


if __name__ == "__main__":
  main()
