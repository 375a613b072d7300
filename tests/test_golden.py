"""Names and checkpoints of earlier versions keep their meaning.

tests/golden/ holds the records; `support/golden.py` says how they are made. If a test
fails because of a new feature, write the names again, and look at the difference: lines
may only be added. Checkpoints are never written again.
"""

import json

import pytest
from support import golden
from support import processes


@pytest.mark.slow
def test_the_public_names_are_those_of_the_record():
  # In this process, other tests may have registered more.
  today = processes.call(golden.names)
  expected = golden.NAMES.read_text(encoding="utf-8").splitlines()
  assert sorted(set(expected) - set(today)) == []  # Names that users would miss.
  assert today == expected


@pytest.mark.slow
@pytest.mark.parametrize("notation", golden.NOTATIONS)
def test_an_old_checkpoint_evaluates_and_decodes_to_the_same_digits(notation):
  folder = golden.FOLDER / notation
  expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
  numbers = golden.evaluate(notation, folder)
  assert numbers["ids"] == expected["ids"]
  assert numbers["loss"] == pytest.approx(expected["loss"], rel=1e-6)
