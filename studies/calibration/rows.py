"""Writes the rows of tokens that torch_training.py trains on, and a file of gin.

  python -m studies.calibration.rows DATA OUTPUT

DATA is what `python -m studies.prepare` wrote. The command writes to OUTPUT:

  span_corruption.npz   rows of span corruption on WikiText-2, Brown and the text of
                        `make demo`: `train` with `--noises` draws of the spans, and
                        `validation` with one
  libreoffice.npz       pairs of LibreOffice's help, English to German
  recall.npz            pairs of rows for the recall of a model: see `recall`

Each has <uint16>[rows, length] under `SPLIT_inputs` and `SPLIT_targets`; 0 is padding.
"""

from collections.abc import Iterable
import pathlib

import numpy as np
import seqio
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_names
from synthesizer_mtf.tools.base import arguments
import tqdm

_SPANS = "synth_text_span_corruption"
# The inputs of `recall`: a text, and after it one with spans taken out.
_RECALL = {"inputs": 112, "targets": 48}


def rows(mixture: str, split: str, lengths: dict[str, int],
         seeds: Iterable[int]) -> dict[str, np.ndarray]:
  """The examples of a split, each in a row of its own.

  Args:
    mixture: the name of a task or mixture.
    split: "train" or "validation".
    lengths: the lengths of "inputs" and "targets"; longer examples are cut.
    seeds: all examples are drawn once with each.

  Returns:
    a dict from the keys of `lengths` to <uint16>[rows, length].
  """
  made: dict[str, list[np.ndarray]] = {name: [] for name in lengths}
  for seed in tqdm.tqdm(list(seeds), f"{mixture}, {split}", unit=" epochs"):
    dataset = seqio.get_mixture_or_task(mixture).get_dataset(
        lengths, split, shuffle=True, seed=seed, num_epochs=1)
    dataset = seqio.trim_and_pad_dataset(dataset, lengths)
    for example in dataset.batch(256).as_numpy_iterator():
      for name in lengths:
        made[name].append(example[name].astype(np.uint16))
  return {name: np.concatenate(batches) for name, batches in made.items()}


def restored(inputs: np.ndarray, targets: np.ndarray, sentinels: set[int]) -> list[int]:
  """The text of a row of span corruption, <int>[length], without end of sequence."""
  spans: dict[int, list[int]] = {}
  for token in targets[targets > 1].tolist():
    if token in sentinels:
      last = spans.setdefault(token, [])
    else:
      last.append(token)
  return [token for piece in inputs[inputs > 1].tolist()
          for token in spans.get(piece, [piece])]


def recall(examples: dict[str, np.ndarray], length: int,
           sentinels: set[int]) -> dict[str, np.ndarray]:
  """Rows whose spans stand earlier in the inputs, and the same with another text there.

  Args:
    examples: `rows` of span corruption, all of them full.
    length: of the inputs.
    sentinels: the ids of sentinels.

  Returns:
    `same_inputs` and `other_inputs` <uint16>[rows, length]: the text of the row or of
    the next row, before the row's inputs; and `same_targets` and `other_targets`, the
    row's own.
  """
  full = (examples["inputs"] > 0).all(1)
  inputs, targets = (examples[name][full] for name in ("inputs", "targets"))
  room = length - inputs.shape[1]
  texts = [restored(*row, sentinels)[:room] for row in zip(inputs, targets)]
  same = [[*text, *row] for text, row in zip(texts, inputs.tolist())]
  other = [[*text, *row] for text, row in zip(texts[1:] + texts[:1], inputs.tolist())]
  made = {}
  for name, lines in (("same", same), ("other", other)):
    made[f"{name}_inputs"] = np.array(
        [line + [0] * (length - len(line)) for line in lines], np.uint16)
    made[f"{name}_targets"] = targets
  return made


def _parse(data, gin_file, lengths):
  gin_files.parse([str(data / "data.gin"), gin_file], [
      f"utils.run.sequence_length = {lengths}"])


def main(argv: list[str] | None = None) -> None:
  """Reads the flags and writes the files."""
  parser = arguments.parser("studies.calibration.rows", __doc__)
  parser.add_argument("data", type=pathlib.Path, metavar="DATA")
  parser.add_argument("output", type=pathlib.Path, metavar="OUTPUT")
  parser.add_argument("--noises", type=arguments.positive, default=5,
                      help="draws of the spans (default: %(default)s)")
  with arguments.command(parser, argv) as args:
    _write(args)


def _write(args):
  gin_names.import_modules(["studies"])
  args.output.mkdir(parents=True, exist_ok=True)
  lengths = {"inputs": 256, "targets": 64}
  _parse(args.data, "studies/calibration_spans.gin", lengths)
  validation = rows(_SPANS, "validation", lengths, [1])
  _save(args.output / "span_corruption.npz",
        train=rows(_SPANS, "train", lengths, range(args.noises)), validation=validation)
  vocabulary = seqio.get_mixture_or_task(_SPANS).output_features["targets"].vocabulary
  pairs = recall(rows(_SPANS, "validation", _RECALL, [2]), lengths["inputs"],
                 set(vocabulary.sentinel_ids()))
  np.savez_compressed(args.output / "recall.npz", **pairs)
  lengths = {"inputs": 64, "targets": 64}
  _parse(args.data, "studies/libreoffice.gin", lengths)
  _save(args.output / "libreoffice.npz", **{
      split: rows("synth_text_pairs", split, lengths, [1])
      for split in ("train", "validation")})


def _save(path, **splits):
  np.savez_compressed(path, **{
      f"{split}_{name}": values for split, examples in splits.items()
      for name, values in examples.items()})
  counts = [f"{len(examples['inputs'])} rows of {split}"
            for split, examples in splits.items()]
  print(f"Wrote {path}: {', '.join(counts)}")


if __name__ == "__main__":
  main()
