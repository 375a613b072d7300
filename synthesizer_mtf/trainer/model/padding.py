"""How many of the texts that Mesh TensorFlow predicts are texts, and not padding.

Its last batch is full. Rows without tokens fill it if a task is read, and copies of the
first text if a file or a list is, which only their number tells from texts.
"""

from collections.abc import Sequence

from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.model import answers


def texts_in_command() -> int | None:
  """The number of texts of the mode that gin binds; None if only the data tell it."""
  mode = gin_files.bound("utils.run.mode", None)
  if mode == "infer":
    return texts_to_decode()
  if mode == "score_from_strings":
    return texts_to_score(*(gin_files.bound(f"score_from_strings.{name}", None)
                       for name in ("inputs", "targets")))
  return None


def texts_to_decode() -> int | None:
  """The number of texts in the file that `decode_from_file` reads, with its repeats."""
  decode = gin_files.bound("infer_model.decode_fn", utils.decode_from_file)
  if decode is answers.decode:
    decode = gin_files.bound("synthesizer_answers.decode_fn", utils.decode_from_file)
  if decode is not utils.decode_from_file:
    return None
  return _count(gin_files.bound("decode_from_file.input_filename", ())) * (
      gin_files.bound("decode_from_file.repeats", 1))


def texts_to_score(inputs: str | Sequence[str] | None,
              targets: str | Sequence[str] | None) -> int:
  """The number of texts that are scored: files of texts, or texts."""
  return max(map(_count, (inputs or (), targets or ())))


def _count(texts):
  return len(utils.get_inputs_from_file(texts) if isinstance(texts, str) else texts)
