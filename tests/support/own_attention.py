"""The module with an attention of a user's own that docs/add_a_variant.md shows."""

import contextlib
import sys
from unittest import mock

from support import documents
from synthesizer_mtf.attention import functions

MODULE = "my_attention"
PAGE = "docs/add_a_variant.md"


@contextlib.contextmanager
def in_folder(folder):
  """Writes the module into a folder, where Python finds it; forgets it at the end."""
  text, *_ = [text for language, text in documents.blocks(PAGE) if language == "python"]
  (folder / f"{MODULE}.py").write_text(text)
  sys.path.append(str(folder))
  try:
    with mock.patch.dict(functions.SYNTHESIZING_FUNCTIONS):
      yield
  finally:
    sys.path.remove(str(folder))
    sys.modules.pop(MODULE, None)
