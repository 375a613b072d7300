"""TFDS data sets, read without the network if they are already prepared.

Gin may replace the data sets that the tasks read by default. A star stands for a part
of the name that stays the same:

  synthesizer_mtf.tasks.tfds.names = {"c4/en:3.1.0": "c4/realnewslike:3.1.0",
                                      "glue/*:2.0.0": "glue/*:1.0.0"}
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import os
import re
from typing import Any
import urllib.parse

from absl import logging
import gin
import seqio
from synthesizer_mtf import checks
import tensorflow.compat.v2 as tf
import tensorflow_datasets as tfds

_PARAMETER = "synthesizer_mtf.tasks.tfds.names"
_PORTS = {"http": 80, "https": 443, "ftp": 21}  # Their URLs have names of hosts.


@gin.configurable("tfds", module="synthesizer_mtf.tasks")
def _chosen_name(default, names=None):
  """Returns the name of the data set to read; gin passes `names`."""
  names = {} if names is None else names
  if not isinstance(names, dict) or not all(
      isinstance(name, str) for pair in names.items() for name in pair):
    raise checks.Error(
        f"`{_PARAMETER}` is {names!r} but must be a dict from names of data sets to "
        "others, as {'c4/en:3.1.0': 'c4/realnewslike:3.1.0'}; change it.")
  for name, other in names.items():
    pattern = re.compile(re.escape(name).replace(r"\*", "(.*)"))
    if match := pattern.fullmatch(default):
      return other.replace("*", match[1]) if match.groups() else other
    if not any(map(pattern.fullmatch, known := _default_names())):
      raise checks.Error(
          f"`{_PARAMETER}` replaces {name!r}, but no task reads a data set of that "
          f"name; there are {', '.join(sorted(known))}.")
  return default


def _default_names():
  """The names that the registered tasks read by default."""
  sources = [seqio.TaskRegistry.get(name).source for name in seqio.TaskRegistry.names()]
  return {source.default_name for source in sources
          if isinstance(source, PreparedDataSource)}


class PreparedDataSource(seqio.TfdsDataSource):
  """A `seqio.TfdsDataSource` that avoids the network if it can.

  seqio's own source looks into TFDS's bucket in cloud storage each time it reads, even
  if the data set lies prepared in the directory of `--t5_tfds_data_dir`. This source
  reads a prepared data set, and prepares a missing one. If preparing fails, as it does
  without a network, the error says what to do.
  """

  def __init__(self, tfds_name: str,
               splits: Sequence[str] | Mapping[str, str] | None = None):
    """Makes a source.

    Args:
      tfds_name: name, configuration and version, such as "glue/cola:2.0.0".
      splits: a list of the splits to use, or a dict from their names to those of
        TFDS, such as "train[:90%]"; None for all of them.
    """
    super().__init__(tfds_name=tfds_name, splits=splits, read_only=True)
    self._loaders = {tfds_name: self._tfds_dataset}
    self._split_map = splits if isinstance(splits, Mapping) else None

  @property
  def default_name(self) -> str:
    """The name of the data set unless gin chooses another."""
    return self._tfds_dataset.name

  @property
  def tfds_dataset(self) -> seqio.LazyTfdsLoader:
    """The data set that gin has chosen."""
    name = _chosen_name(self.default_name)
    if name not in self._loaders:
      self._loaders[name] = seqio.LazyTfdsLoader(
          name, split_map=self._split_map, read_only=True)
    return self._loaders[name]

  @property
  def splits(self) -> Collection[str]:
    if not self._splits:
      self._prepare()
    return super().splits

  def get_dataset(self, *args: Any, **kwargs: Any) -> tf.data.Dataset:
    self._prepare()
    return super().get_dataset(*args, **kwargs)

  def num_input_examples(self, split: str) -> int | None:
    self._prepare()
    return super().num_input_examples(split)

  def list_shards(self, split: str) -> Sequence[str]:
    self._prepare()
    # seqio's cached method keeps the shards of the data set that was chosen first.
    return seqio.TfdsDataSource.list_shards.__wrapped__(self, split)

  def made_with(self) -> dict[str, str]:
    """Returns what a cache of the examples depends on."""
    return {"data set": self.tfds_dataset.name}

  def _prepare(self):
    """Prepares a missing data set; raises ValueError where that fails."""
    builder = self.tfds_dataset.builder
    if builder.is_prepared():
      return
    name = self.tfds_dataset.name
    folder = self.tfds_dataset.data_dir or tfds.core.constants.DATA_DIR
    logging.warning(
        "%s is not in %s: it is fetched, %s. --t5_tfds_data_dir names a directory "
        "that has it.", name, folder,
        builder.info.download_size or "of a size that TFDS does not know")
    try:
      if not _has_downloads(folder):
        _check_hosts(builder)
      builder.download_and_prepare()
    except Exception as error:  # Builders raise many kinds of exceptions.
      raise checks.Error(
          f"TFDS data set {name!r} is not in {str(folder)!r} and cannot be "
          f"prepared there ({type(error).__name__}: {_first_line(error)}); "
          "name the directory that has it by --t5_tfds_data_dir, or run `tfds "
          f"build {name} --data_dir=DIR` where there is a network.") from error


def _has_downloads(folder):
  """Whether TFDS has fetched files before; each has a file of its source beside it."""
  return bool(tf.io.gfile.glob([os.path.join(folder, "downloads", *parts)
                                for parts in (["*.INFO"], ["*", "*.INFO"])]))


def _check_hosts(builder):
  """Raises OSError if none of the data set's hosts answers; TFDS would try for minutes.

  Only hosts in the web are tried.
  """
  urls = [urllib.parse.urlsplit(url) for url in builder.url_infos]
  if {url.scheme for url in urls} <= set(_PORTS):
    if reason := checks.no_network(
        {(str(url.hostname), url.port or _PORTS[url.scheme]) for url in urls}):
      raise OSError(reason)


def _first_line(error):
  return (str(error).splitlines() or [""])[0]
