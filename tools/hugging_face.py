"""Brings T5 models over from Hugging Face's format.

  python -m synthesizer_mtf.tools.hugging_face import DIR --output=MODEL_DIR

It reads a local folder of T5, T5 1.1, Flan-T5, mT5 or ByT5 as save_pretrained
writes it, and writes MODEL_DIR/model.ckpt-0, a checkpoint of Mesh TensorFlow;
operative_config.gin, the model's sizes and kind; stock_t5.gin, the same for T5's
own command; spiece.model; and hugging_face.json, which says where it came from.
"""

import argparse
import sys

from synthesizer_mtf.command import messages
from synthesizer_mtf.tools.hugging_face_bridge import importing
import tensorflow.compat.v1 as tf


def main(argv: list[str] | None = None) -> None:
  """Parses flags, and imports."""
  args = _parser().parse_args(argv)
  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.ERROR)
  try:
    _run(args)
  except Exception as error:
    if not (messages.is_mistake(error) or isinstance(error, OSError)):
      raise
    sys.exit(f"hugging_face: {messages.split_message(error)[0]}")


def _run(args):
  importing.run(args.folder, args.output, args.ignore)
  print(f"Wrote {args.output}. Fine-tune it with\n"
        f"  --gin_file={args.output}/operative_config.gin "
        "--gin_file=attention/r+v.gin --gin_file=warm_start/from_t5.gin\n"
        f"  --gin_param=\"warm_start.checkpoint = '{args.output}'\"")


def _parser():
  parser = argparse.ArgumentParser(
      prog="hugging_face", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(required=True, metavar="COMMAND")
  add = commands.add_parser("import", help="from there to here").add_argument
  add("folder", metavar="DIR", help="that save_pretrained wrote")
  add("--output", required=True, metavar="MODEL_DIR",
      help="where to write; new, or empty")
  add("--ignore", action="append", default=[], metavar="KEY",
      help="a key of config.json that is not known here and does not matter")
  return parser


if __name__ == "__main__":
  main()
