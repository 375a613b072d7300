"""What the tests of tasks share."""

import pytest
from support.task_files import bind


@pytest.fixture
def vocabulary(clean_tasks, sentencepiece_model):
  """The tests' SentencePiece model, bound in gin; no variable names other files."""
  bind("vocabulary.sentencepiece_model", sentencepiece_model)
