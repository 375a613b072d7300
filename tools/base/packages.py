"""Lets Python call a command that is a package, as `plot_attention.main([...])`."""

from collections.abc import Callable
from collections.abc import Sequence
import importlib

import gin


def main(package: str) -> Callable[[Sequence[str] | None], None]:
  """Returns `main` of a package's `__main__`, which is imported when it is called.

  It may be called after a training, which locks gin: the import adds configurables.
  """
  def call(argv: Sequence[str] | None = None) -> None:
    with gin.unlock_config():
      command = importlib.import_module(f"{package}.__main__")
    command.main(argv)
  return call
