"""Hands models over to PyTorch and Hugging Face, and takes T5 models from there.

  python -m synthesizer_mtf.tools.hugging_face import DIR --output=MODEL_DIR
  python -m synthesizer_mtf.tools.hugging_face export MODEL_DIR --output=DIR

`import` reads a local folder of T5, T5 1.1, Flan-T5, mT5 or ByT5 as
save_pretrained writes it, and writes a folder with

  model.ckpt-0          a checkpoint of Mesh TensorFlow
  operative_config.gin  the model's sizes, kind and vocabulary
  stock_t5.gin          the same for T5's own command, without the vocabulary
  spiece.model          the SentencePiece model
  hugging_face.json     the origin of the model

`export` does the reverse, for V and all attentions that mix with it. The folder of
another attention than V has modeling_synthesizer.py, which computes it in PyTorch.
`import` reads such folders, too, once they were fine-tuned there.

In an environment with PyTorch and without TensorFlow, pytorch/write.py writes a folder
for a notation and sizes, and pytorch/to_onnx.py makes graphs of ONNX.
"""


from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.tools.hugging_face import exporting
from synthesizer_mtf.tools.hugging_face import importing


def main(argv: list[str] | None = None) -> None:
  """Parses flags, and imports or exports."""
  with arguments.command(_parser(), argv, graphs=True) as args:
    args.run(args)


def _import(args):
  _print(importing.run(args.folder, args.output, args.ignore))
  print(f"Wrote {args.output}. To train from it, give\n"
        f"  --gin_file={args.output}/operative_config.gin "
        "--gin_file=attention/r+v.gin --gin_file=warm_start/from_t5.gin\n"
        f"  --gin_param=\"warm_start.checkpoint = '{args.output}'\"")


def _export(args):
  path, step = trained_model.configure(args.folder, args)
  _print(exporting.run(path, step, args.output, args.dtype, args.leave_out))
  print(f"Wrote {args.output}, step {step} of {args.folder}.")


def _print(notes):
  for note in notes:
    print(f"Note: {note}")


def _parser():
  parser = arguments.parser("hugging_face", __doc__)
  commands = parser.add_subparsers(required=True, metavar="COMMAND")
  importer = commands.add_parser("import", help="convert to Mesh TensorFlow")
  importer.set_defaults(run=_import)
  add = importer.add_argument
  add("folder", metavar="DIR", help="a folder that save_pretrained wrote")
  add("--output", required=True, metavar="MODEL_DIR",
      help="the folder to write, which is new or empty")
  add("--ignore", action="append", default=[], metavar="KEY",
      help="a key of config.json that is not known here and does not matter")
  exporter = commands.add_parser("export", help="convert to Hugging Face")
  exporter.set_defaults(run=_export)
  add = exporter.add_argument
  add("folder", metavar="MODEL_DIR", help="the folder of the checkpoints")
  add("--output", required=True, metavar="DIR",
      help="the folder to write, which is new or empty")
  add("--dtype", choices=exporting.DTYPES,
      help="the dtype of the weights (default: that of the checkpoint)")
  add("--leave_out", metavar="REGEX",
      help="leave out variables that the exported model lacks, such as ^classifier/")
  trained_model.add_flags(exporter)
  return parser


if __name__ == "__main__":
  main()
