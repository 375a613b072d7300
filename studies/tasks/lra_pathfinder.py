"""Pathfinder of Long Range Arena (arXiv:2011.04006, section 2.2.5), 32 x 32 pixels.

Gin names the release's folder pathfinder32. If gin does not, the environment does:

  synthesizer_mtf.tasks.lra_pathfinder32.directory = "/data/lra_release/pathfinder32"
  SYNTHESIZER_MTF_LRA_PATHFINDER32

`lra_pathfinder32.difficulty` is "hard", "intermediate" or "easy". For each difficulty
the release has a folder. The files metadata/*.npy in this folder are text; each line
names a picture and its label. The release does not divide the pictures into splits.
Here a fixed shuffle assigns 80% of them to training, 10% to validation and 10% to the
test. Every picture is read once before training. Empty files are left out and counted;
the release has one.
"""

from collections.abc import Iterator
from concurrent import futures
import functools
import struct

from absl import logging
import gin
import numpy as np
import seqio
from studies.tasks import pixels
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import text_source
import tensorflow.compat.v2 as tf

_PARAMETER = "synthesizer_mtf.tasks.lra_pathfinder32"
_VARIABLE = "SYNTHESIZER_MTF_LRA_PATHFINDER32"
_FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9",
            "hard": "curv_contour_length_14"}
_SHARES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
_CLASSES = ("apart", "connected")
_SIGNATURE, _END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_THREADS = 32


@gin.configurable("lra_pathfinder32", module="synthesizer_mtf.tasks")
def _chosen(directory=None, difficulty="hard"):
  """Returns (what names the release's folder, the path of the difficulty's folder)."""
  if difficulty not in _FOLDERS:
    raise checks.Error(
        f"`{_PARAMETER}.difficulty` is {difficulty!r} but must be one of "
        f"{', '.join(map(repr, _FOLDERS))}; change it.")
  origin, folder = text_source.chosen_folder(
      f"{_PARAMETER}.directory", _VARIABLE, directory, "Long Range Arena's release")
  return origin, f"{folder}/{_FOLDERS[difficulty]}"


class Pictures(seqio.FunctionDataSource):
  """The pictures' paths and labels."""

  def __init__(self):
    super().__init__(_dataset, splits=_SHARES)

  def num_input_examples(self, split: str) -> int:
    return len(_of_split(split))

  def made_with(self) -> dict[str, str]:
    """Returns what a cache of the examples depends on."""
    return {"folder": _chosen()[1]}


def _dataset(split, shuffle_files, seed=None):
  """A tf.data.Dataset of {"path": <string>[], "label": <int32>[]}, in a fixed order."""
  del shuffle_files, seed
  paths, found = zip(*_of_split(split))
  return tf.data.Dataset.from_tensor_slices(
      {"path": list(paths), "label": np.array(found, np.int32)})


def _of_split(split):
  """A list of (path, label)."""
  pictures = _checked(*_chosen())
  order = np.random.RandomState(0).permutation(len(pictures))
  start, end = (round(share * len(pictures)) for share in _SHARES[split])
  if start == end:
    raise checks.Error(f"{_chosen()[1]!r} has only {len(pictures)} pictures, too few "
                       f"for a {split} split; fetch the release again.")
  return [pictures[i] for i in order[start:end]]


@functools.cache
def _checked(origin, folder):
  """Reads all pictures of a folder; returns a tuple of (path, label) for each."""
  pattern = f"{folder}/metadata/*.npy"
  files = tf.io.gfile.glob(pattern)
  if not files:
    raise checks.Error(f"{origin} has no files {pattern!r}; name the folder "
                       "pathfinder32 of Long Range Arena's release.")
  # Files are sorted by number, 2.npy before 10.npy.
  rows = [row for path in sorted(files, key=lambda path: (len(path), path))
          for row in _rows(folder, lines_lib.Lines(path))]
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    is_full = list(pool.map(_check_picture, rows))
  pictures = tuple(row[:2] for row, full in zip(rows, is_full) if full)
  logging.info("%s: %d pictures, and %d empty files, which are left out.", folder,
               len(pictures), len(rows) - len(pictures))
  return pictures


def _rows(folder: str, lines: lines_lib.Lines) -> Iterator[tuple[str, int, str]]:
  """Yields (path, label, the line that names the picture)."""
  for row in lines:
    columns = row.split()
    if len(columns) < 4 or columns[3] not in ("0", "1"):
      raise lines.error(f"a folder, a picture, a number and a label of 0 or 1 are "
                        f"needed, not {row[:60]!r}; is the file cut off? Fetch it "
                        "again.")
    yield (f"{folder}/{columns[0]}/{columns[1]}", int(columns[3]),
           f"{lines.path!r}, line {lines.number}")


def _check_picture(row):
  """Returns whether a file is not empty; raises a ValueError for a damaged picture."""
  path, _, where = row
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      content = f.read()
  except tf.errors.OpError as error:
    raise checks.Error(f"{where} names {path!r}, which cannot be read "
                       f"({lines_lib.reason(error)}); fetch it again.") from error
  if not content:
    return False
  if not content.startswith(_SIGNATURE) or not content.rstrip(b"\0").endswith(_END):
    raise checks.Error(f"{path!r} is not a whole PNG file; fetch it again.")
  width, height = struct.unpack(">II", content[16:24])
  pixels.check_size(repr(path), height, width)
  return True


@seqio.map_over_dataset
def _read(row):
  picture = tf.io.decode_png(tf.io.read_file(row["path"]), channels=1)
  picture = tf.ensure_shape(picture, [pixels.SIDE, pixels.SIDE, 1])
  return {"inputs": pixels.ids(picture), "targets": tf.gather(_CLASSES, row["label"])}


pixels.add("synth_lra_pathfinder32", Pictures(), _read, _CLASSES)
