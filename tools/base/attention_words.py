"""Attentions as words of a command: a notation, a list for the blocks, or one a stack.

  R+V            a notation: all blocks of both stacks
  [R,R,V]        an entry for each block
  R/V            the encoder's, then the decoder's; each a notation or a list
  [R,@MyLayer]   an entry can be a layer class, as in gin

Between words of one flag stand commas, too; those in brackets belong to a list.
"""

import re

_LIST = re.compile(r"\[(.*)\]")


def split(text: str) -> list[str]:
  """Returns the words of a text, which commas outside brackets separate."""
  return re.split(r",(?![^\[]*\])", text)


def by_stack(word: str) -> dict[str, str]:
  """Returns gin's value of `synthesizer_stack.attention` for each scope of a word.

  Args:
    word: see the module.

  Returns:
    a dict with the keys "encoder" and "decoder", or with the key "" for both stacks.
  """
  stacks = word.split("/")
  if len(stacks) == 2:
    return dict(zip(("encoder", "decoder"), map(_value, stacks)))
  return {"": _value(word)}


def bindings(word: str) -> list[str]:
  """Returns the gin bindings that choose the attention of a word."""
  return [f"{stack + '/' if stack else ''}synthesizer_stack.attention = {value}"
          for stack, value in by_stack(word).items()]


def entries(word: str) -> list[str]:
  """Returns the notations and classes of a word, in order."""
  return [entry for stack in word.split("/") for entry in _entries(stack)]


def _entries(stack):
  listed = _LIST.fullmatch(stack.strip())
  return [entry.strip() for entry in (listed[1].split(",") if listed else [stack])]


def _value(stack):
  values = [entry if entry.startswith("@") else repr(entry)
            for entry in _entries(stack)]
  return f"[{', '.join(values)}]" if _LIST.fullmatch(stack.strip()) else values[0]
