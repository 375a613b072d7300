"""Parses shell commands in documents and in comments."""

import re
import shlex


def lines(text):
  """Returns the lines of a text, joined where a line ends in a backslash."""
  return text.replace("\\\n", " ").splitlines()


def commands(text):
  """Returns the commands in lines of shell, each as a list of words.

  If a line sets a variable, the lines below it get its value. The result leaves out
  variables that are set for one command only, and `...`, which stands for a user's
  words.
  """
  variables, split = {}, []
  for line in lines(text):
    words = shlex.split(line, comments=True)
    if len(words) == 1 and _is_assignment(words[0]):
      name, _, value = words[0].partition("=")
      variables[name] = value
      continue
    words = [word for whole in words for word in _filled(whole, variables)]
    while words and _is_assignment(words[0]):
      words = words[1:]
    split.append([word for word in words if word not in ("...", "…")])
  return [words for words in split if words]


def _is_assignment(word):
  return re.match(r"[A-Z_]+=", word)


def _filled(word, variables):
  """Returns the words that a word becomes, once variables are filled in."""
  if word.startswith("$") and word[1:] in variables:
    return shlex.split(variables[word[1:]])
  return [re.sub(r"\$(\w+)", lambda m: variables.get(m[1], m[0]), word)]
