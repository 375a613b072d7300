"""The table of Long Range Arena (arXiv:2011.04006), for attentions of this package.

The figures are those of google-research/long-range-arena. The Synthesizer of that code
is R+V, because its configurations never choose the variant without dot products. For
R, D or FR alone, no figures are published.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import gin
import seqio
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.experiments import first_check
from synthesizer_mtf.tools.experiments import settings as settings_lib

# From the title of a column to the name of the gin file in models/lra.
TASKS = {"ListOps": "listops", "Text": "text", "Retrieval": "retrieval",
         "Image": "image", "Pathfinder": "pathfinder32"}


class Row(NamedTuple):
  """One attention, and its published accuracies by the titles of columns."""
  name: str
  paper: Mapping[str, float] = {}
  published_as: str = "-"

  @property
  def gin_file(self) -> str:
    """The gin file of the attention."""
    return f"attention/{self.name.lower()}.gin"


def _row(name, published_as, *figures):
  return Row(name, dict(zip(TASKS, figures)), published_as)


ROWS = {row.name: row for row in (
    _row("V", "Transformer", 36.37, 64.27, 57.46, 42.44, 71.40),
    Row("R"), Row("D"), Row("FR"),
    _row("R+V", "Synthesizer", 36.99, 61.68, 54.67, 41.61, 69.45),
    _row("Linformer", "Linformer", 35.70, 53.94, 52.27, 38.56, 76.34))}
rows = tuple(ROWS.values())
title = "Long Range Arena"
NOTE = ("Accuracy in percent on the test split, as published; parameters are ours, "
        "embeddings rounded up to 128 included. What was published as Synthesizer "
        "computes R+V.")


def commands(chosen: Iterable[Row], bucket: str,
             settings: settings_lib.Settings) -> Iterator[tuple[str, list[str]]]:
  """Yields (description, command) for each training and evaluation.

  Args:
    chosen: some of `rows`.
    bucket: a folder, such as "gs://BUCKET".
    settings: the user's choices, whose steps have no effect.
  """
  for row in chosen:
    for column, name in TASKS.items():
      folder = f"{bucket}/lra/{row.name.lower()}/{name}"
      files = [f"models/lra/{name}.gin", row.gin_file]
      params = {"utils.tpu_mesh_shape.tpu_topology": "2x2"}
      yield (f"{row.name}: train on {column}",
             settings.launch(folder, files, params))
      yield (f"{row.name}: evaluate {column}", settings.launch(
          folder, [*files, "eval.gin"],
          {**params, "utils.run.dataset_split": "test"}))


def lines(chosen: Iterable[Row]) -> Iterator[dict[str, Any]]:
  """Yields a dict for each row: the published figures and our parameters."""
  for row in chosen:
    line: dict[str, Any] = {"row": row.name, "published as": row.published_as}
    for column, name in TASKS.items():
      line[f"{column}, published"] = row.paper.get(column)
      line[f"{column}, parameters"] = parameters(
          [f"models/lra/{name}.gin", row.gin_file])
    yield line


def parameters(files: list[str]) -> int:
  """Returns the number of trainable parameters of the classifier in gin files."""
  gin_files.parse(files)
  features = seqio.get_mixture_or_task(
      gin.query_parameter("%MIXTURE_NAME")).output_features
  graph = first_check.build((features["inputs"].vocabulary.vocab_size,
                             features["targets"].vocabulary.vocab_size))
  return sum(variable.size for variable in graph.trainable_variables)
