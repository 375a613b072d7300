"""Lets any program of the environment import mesh_tensorflow and t5.models.

Python runs `synthesizer_mtf_start.pth` whenever it starts, and the .pth file calls
`install`. Therefore T5's own command starts, as `t5_mesh_transformer` does in the
environment that T5 was written for. A program that never imports mesh_tensorflow is not
touched, and TensorFlow is imported only by those that do. `compat.make_importable`
makes the changes. All others wait until a program imports synthesizer_mtf itself.

This module stands beside the package, because a module inside it would first run the
package's imports. It imports only what Python itself has imported at this point.
"""

import os
import sys

_MESH = "mesh_tensorflow"
_COMPAT = "synthesizer_mtf.compat"

# The parts of `synthesizer_mtf` as parts of this module. So an import of `compat` from
# here does not run the imports of the package.
__path__ = [os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "synthesizer_mtf")]


class _Finder:
  """Prepares TensorFlow when mesh_tensorflow is about to run."""

  def find_spec(self, name, path=None, target=None):
    """Finds mesh_tensorflow as Python does; looking for it changes nothing yet."""
    if name != _MESH or _COMPAT in sys.modules:
      return None
    finders = (f for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
    found = (finder.find_spec(name, path, target) for finder in finders)
    spec = next((spec for spec in found if spec is not None), None)
    if spec is not None and hasattr(spec.loader, "exec_module"):
      run = spec.loader.exec_module
      spec.loader.exec_module = lambda module: (_prepare(), run(module))[1]
    return spec


def _prepare():
  """Makes mesh_tensorflow importable; a failure leaves it as it was."""
  try:
    from synthesizer_mtf_start import compat
    compat.make_importable()
  except Exception:  # The import itself then says what is wrong.
    pass


def install() -> None:
  """Adds the finder to Python's; a second call changes nothing."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())
