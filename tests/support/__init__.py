"""What several files of tests share."""

import pytest

# Before they are imported; else a failed assert would not show its values.
pytest.register_assert_rewrite("support.classifiers", "support.decoding")
