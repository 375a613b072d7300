"""Small commands; each runs as `python -m synthesizer_mtf.tools.NAME`."""

import importlib.util

# What the extra `tools` installs; training and decoding do without.
_NEEDED = ("babel", "matplotlib", "pandas", "safetensors", "scipy")

_missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
if _missing:
  raise ImportError(
      f"the tools and the demo need {', '.join(_missing)}: install the extra named "
      "tools, by pip install '.[tools]' in the checkout, or by pip install "
      "'synthesizer-mtf[tools]'.")
