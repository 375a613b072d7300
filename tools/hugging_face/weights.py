"""Reads and writes Hugging Face's weights: one file, or shards with an index."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import json
import math
import os
import pathlib
from typing import NamedTuple

import numpy as np
import safetensors
from synthesizer_mtf import checks
from synthesizer_mtf.tools.hugging_face import config
import tensorflow as tf
import tqdm

SAFETENSORS = "model.safetensors"
_TORCH = "pytorch_model.bin"

_BFLOAT16 = tf.bfloat16.as_numpy_dtype

# From names of dtypes in safetensors to NumPy's dtypes.
DTYPES = {"F16": np.dtype(np.float16), "BF16": np.dtype(_BFLOAT16),
          "F32": np.dtype(np.float32)}


class Tensor(NamedTuple):
  """A tensor in a file, whose values have not been read yet.

  Attributes:
    file: the path of the file.
    dtype: a key of `DTYPES`, or another dtype of the file's format.
    read: returns the tensor.
  """
  file: str
  dtype: str
  shape: tuple[int, ...]
  read: Callable[[], np.ndarray]


def find(folder: str) -> dict[str, Tensor]:
  """Returns a dict from names to the tensors of a folder.

  Raises:
    ValueError: the folder has no tensors, a shard is missing, or a file is damaged.
  """
  for name, scan in ((SAFETENSORS, _safetensors), (_TORCH, _torch)):
    path = os.path.join(folder, name)
    if os.path.exists(path):
      return scan(path)
    if os.path.exists(f"{path}.index.json"):
      return _sharded(f"{path}.index.json", scan)
  raise checks.Error(
      f"{folder!r} has no weights: neither {SAFETENSORS} nor {_TORCH}, nor "
      "shards with an index; bring them there.")


def check_finite(file: str, name: str, value: np.ndarray) -> None:
  """Raises a ValueError if a weight is NaN or infinite."""
  # A NaN or an infinity makes the sum NaN or infinite.
  if not np.isfinite(np.sum(value, dtype=np.float64)):
    raise checks.Error(f"{file!r} has {name!r} with NaN or infinite values; such a "
                       "model cannot be taken over.")


def write(path: pathlib.Path, shapes: dict[str, tuple[int, ...]], dtype: str,
          read: Callable[[str], np.ndarray]) -> None:
  """Writes a safetensors file, one tensor at a time.

  The package safetensors needs all tensors in memory at once.

  Args:
    path: the path of the file.
    shapes: a dict from names to shapes.
    dtype: a key of `DTYPES`.
    read: a function from names to arrays, which are cast to `dtype`.
  """
  header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
  end = 0
  for name, shape in shapes.items():
    begin, end = end, end + DTYPES[dtype].itemsize * math.prod(shape)
    header[name] = {"dtype": dtype, "shape": list(shape),
                    "data_offsets": [begin, end]}
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)  # The spaces align the data.
  with path.open("wb") as f:
    f.write(len(text).to_bytes(8, "little") + text)
    for name in tqdm.tqdm(shapes, "Exporting", unit=" weights"):
      f.write(np.ascontiguousarray(read(name), DTYPES[dtype]).view(np.uint8).data)


def _sharded(path, scan):
  """Returns the tensors of all shards, as the index names them."""
  index = config.read_json(path)
  places = index.get("weight_map") if isinstance(index, dict) else None
  if not isinstance(places, dict) or not places:
    raise checks.Error(f"{path!r} has no weight_map; bring the file back.")
  tensors = {}
  for shard in sorted(set(places.values())):
    file = os.path.join(os.path.dirname(path), os.path.basename(shard))
    if not os.path.exists(file):
      raise checks.Error(f"{path!r} names the shard {shard!r}, which is not there; "
                         "bring it back.")
    tensors.update(scan(file))
  wrong = [name for name in {**places, **tensors}
           if name not in tensors or name not in places or
           os.path.basename(tensors[name].file) != os.path.basename(places[name])]
  if wrong:
    raise checks.Error(f"{path!r} and its shards do not agree where {wrong[0]!r} "
                       "is; bring the files back.")
  return tensors


def _safetensors(path):
  with _opened(path) as file:
    names = file.keys()  # `file` is not a dict.
    slices = {name: file.get_slice(name) for name in names}
    return {name: Tensor(path, part.get_dtype(), tuple(part.get_shape()),
                         functools.partial(_read, path, name))
            for name, part in slices.items()}


def _read(path, name):
  # The file is opened for each tensor, because mapped memory counts as used memory.
  with _opened(path) as file:
    return file.get_tensor(name)


@contextlib.contextmanager
def _opened(path) -> Iterator[safetensors.safe_open]:
  try:
    with safetensors.safe_open(path, framework="np") as file:
      yield file
  except (OSError, safetensors.SafetensorError) as error:
    raise checks.Error(
        f"{path!r} is damaged ({error}); bring the file back.") from error


def _torch(path):
  try:
    import torch
  except ImportError as error:
    raise checks.Error(
        f"{path!r} can only be read where torch is installed; convert it to "
        f"{SAFETENSORS} where it is, by Transformers' save_pretrained.") from error
  try:
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
  except Exception as error:  # torch raises exceptions of pickle, zip and its own.
    # The rest of torch's message advises users to run code from the file.
    reason = str(error).splitlines()[0].partition(". ")[0]
    raise checks.Error(f"{path!r} is damaged, or holds more than weights "
                       f"({reason}); bring the file back.") from error
  names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
  return {name: Tensor(path, names.get(tensor.dtype, str(tensor.dtype)),
                       tuple(tensor.shape),
                       functools.partial(_from_torch, tensor, torch))
          for name, tensor in tensors.items()}


def _from_torch(tensor, torch):
  """Returns a NumPy array; torch itself makes none from bfloat16."""
  if tensor.dtype == torch.bfloat16:
    return tensor.view(torch.int16).numpy().view(_BFLOAT16)
  return tensor.numpy()
