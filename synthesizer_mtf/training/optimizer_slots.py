"""The slots of Mesh TensorFlow's optimizers, recognized by their names."""

from collections.abc import Iterable
import re

# Adafactor's `_slot_*`, momentum's and Adam's.
_ENDING = re.compile(r"(_slot_(vr|vc|v|m)|_momentum_v|/adam_[mv])$")


def split(name: str) -> tuple[str, str]:
  """Splits the name of a slot.

  Args:
    name: the name of any variable, such as "encoder/q_slot_vr".

  Returns:
    (the slot's variable, the ending of the slot), such as ("encoder/q", "_slot_vr");
    (name, "") if it is not a slot.
  """
  found = _ENDING.search(name)
  return (name[:found.start()], found[0]) if found else (name, "")


def is_slot(name: str) -> bool:
  """Whether this variable is a slot of a Mesh TensorFlow optimizer."""
  return bool(split(name)[1])


def belongs_to_any(name: str, variables: Iterable[str]) -> bool:
  """Whether `name` may be an optimizer's slot of one of `variables`.

  A user's own optimizer has other endings, but the names of its slots begin with the
  name of their variable.
  """
  return any(name.startswith((f"{other}_", f"{other}/")) for other in variables)
