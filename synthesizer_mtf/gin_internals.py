"""gin's own state that has no public function. Only this module reads it."""

from typing import Any

import gin

# gin's parsed configuration, as its hooks get it: a dict from (scope, selector) to the
# values of the bound parameters.
Config = dict[tuple[str, str], dict[str, Any]]


def bindings() -> Config:
  """gin's bindings."""
  return gin.config._CONFIG


def calls() -> Config:
  """The calls of configurables, and their values from gin and from defaults.

  Values that the caller gives are left out.
  """
  return gin.config._OPERATIVE_CONFIG


def registry() -> Any:
  """gin's configurables: a map from full names, which also accepts shorter names."""
  return gin.config._REGISTRY


def folders() -> list[str]:
  """The folders in which gin looks for files."""
  return gin.config._LOCATION_PREFIXES


def readers() -> list[tuple[Any, Any]]:
  """Pairs of a function that opens a file, and one that says whether it can."""
  return gin.config._FILE_READERS
