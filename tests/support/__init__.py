"""Helpers that several test files share."""

import pytest

# pytest must rewrite these modules before their import. Otherwise a failed assert does
# not show its values.
pytest.register_assert_rewrite("support.classifiers", "support.decoding")
