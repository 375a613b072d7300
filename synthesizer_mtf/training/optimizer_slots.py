"""What Mesh TensorFlow's optimizers keep for variables, known by its names."""

from collections.abc import Iterable
import re

# Adafactor's `_slot_*`, momentum's and Adam's.
_ENDING = re.compile(r"(_slot_(vr|vc|v|m)|_momentum_v|/adam_[mv])$")


def split(name: str) -> tuple[str, str]:
  """Splits the name of a slot.

  Args:
    name: of any variable, such as "encoder/q_slot_vr".

  Returns:
    (the variable that the slot is kept for, the ending that makes it a slot),
    as ("encoder/q", "_slot_vr"); for no slot the name and "".
  """
  found = _ENDING.search(name)
  return (name[:found.start()], found[0]) if found else (name, "")


def is_slot(name: str) -> bool:
  """Whether an optimizer of Mesh TensorFlow keeps this variable."""
  return bool(split(name)[1])


def belongs_to_any(name: str, variables: Iterable[str]) -> bool:
  """Whether an optimizer may keep this for one of some variables.

  A user's own optimizer has other endings. But whatever it keeps has the name
  of its variable, and more after it.
  """
  return any(name.startswith((f"{other}_", f"{other}/")) for other in variables)
