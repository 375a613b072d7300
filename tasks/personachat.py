"""Dialogue generation on PersonaChat (Zhang et al., arXiv:1801.07243).

The files are those of ParlAI, in one folder. Gin names this folder. If gin does not,
the environment does:

  synthesizer_mtf.tasks.personachat.directory = "/data/personachat"
  SYNTHESIZER_MTF_PERSONACHAT

`personachat.persona` chooses among the files. The default "self_original" reads
train_self_original.txt, valid_self_original.txt and test_self_original.txt (or the same
with `.gz`), "none_original" reads files without personas, and so on. Each line begins
with a number, which starts at 1 again with each dialogue:

  1 your persona: i like to ski .
  2 hi , how are you ?<TAB>great , just back from the slopes .<TAB><TAB>a|b|c
  3 lucky you .<TAB>where do you live ?<TAB><TAB>a|b|c

Each reply is an example. The candidates (a|b|c) are for ranking, and are not read. The
third line above becomes

  personachat utterance: lucky you . persona: i like to ski .
    history: great , just back from the slopes . | hi , how are you ?

on one line. The newest utterance comes first, because a sequence that is too long is
cut at its end. `personachat.history` says how many utterances before the newest one
are kept; by default all are.

The paper (section 4.1) does not say what its inputs are. Tensor2Tensor's
DialogPersonachat16k has only the last utterance as input, and trains on the replies of
both speakers. The persona "none_original_no_cands" with history 0 gives the same
inputs, but only the replies of one speaker.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import re

import gin
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import dialogue_metrics
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import text_source
from synthesizer_mtf.tasks import text_to_text

_PARAMETER = "synthesizer_mtf.tasks.personachat"
_VARIABLE = "SYNTHESIZER_MTF_PERSONACHAT"
_FILE_NAMES = {"train": "train", "validation": "valid", "test": "test"}
_NUMBER = re.compile(r"([0-9]+)(?: (.*))?")
_PERSONA = re.compile(r"(your|partner's) persona:\s*(.*)")


@gin.configurable("personachat", module="synthesizer_mtf.tasks")
def _chosen(directory=None, persona="self_original", history=None):
  """Returns (directory, persona, history); gin passes the arguments."""
  if history is not None and (not isinstance(history, int) or history < 0):
    raise checks.Error(f"`{_PARAMETER}.history` is {history!r}; it must be a "
                       "number of utterances, 0 or more, or None for all.")
  return directory, persona, history


def _files(split):
  """Returns (the parameter or variable that names the folder, [the file's path])."""
  directory, persona, _ = _chosen()
  return text_source.chosen_file(
      f"{_PARAMETER}.directory", _VARIABLE, directory, "ParlAI's PersonaChat",
      f"{_FILE_NAMES[split]}_{persona}.txt",
      f"choose others by `{_PARAMETER}.persona`, which is {persona!r}")


def parse(lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
  """Yields (inputs, targets), one pair for each reply.

  Args:
    lines: `Lines` of a file in ParlAI's format.

  Raises:
    ValueError: a line without number, an empty utterance or reply, or a file
      without any reply.
  """
  last, has_replies = None, False
  for line in lines:
    number, text = _numbered(line, lines)
    if last is None or number <= last:
      personas, said = {}, []
    last = number
    columns = [column.strip() for column in text.split("\t")]
    persona = _PERSONA.fullmatch(columns[0])
    if persona:
      personas.setdefault(persona[1], []).append(persona[2])
    elif not all(columns[:2]):
      raise lines.error("the utterance or the reply is empty; a line needs a "
                        "number, a space, an utterance, a tab and a reply.")
    else:
      said.append(columns[0])  # In ParlAI, a line without a reply is context.
      if len(columns) > 1:
        has_replies = True
        yield _inputs(said, personas), columns[1]
        said.append(columns[1])
  if not has_replies:
    raise checks.Error(f"{lines.path!r} has no replies; they follow the "
                       "utterance after a tab.")


def _numbered(line, lines):
  """Returns (number, text) of a line."""
  match = _NUMBER.fullmatch(line)
  if not match:
    raise lines.error(f"{line[:40]!r} does not begin with a number and a "
                      "space; ParlAI's format numbers each dialogue's lines.")
  return int(match[1]), match[2] or ""


def _inputs(said, personas):
  """Returns the text of an example.

  Args:
    said: the utterances so far, a list of strings, the newest last.
    personas: a dict from "your" and "partner's" to lists of strings.
  """
  history = _chosen()[-1]
  before = said[-2::-1] if len(said) > 1 else []
  before = before[:history]
  parts = [f"personachat utterance: {said[-1]}"]
  for whose, title in (("your", "persona"), ("partner's", "partner's persona")):
    if whose in personas:
      parts.append(f"{title}: {' '.join(personas[whose])}")
  if before:
    parts.append(f"history: {' | '.join(before)}")
  return " ".join(parts)


def _postprocess(text, is_target=False, **unused_kwargs):
  """Returns a reply on one line, with single spaces between words."""
  if is_target:  # Targets are known before the hours of decoding.
    dialogue_metrics.check()
  return " ".join(text.split())


class DialogueFiles(text_source.FilesDataSource):
  """The files with dialogues. Python reads them, since a dialogue spans lines."""

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    return _files(split)

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
    return parse(lines)

  def made_with(self) -> dict[str, str | int | None]:
    _, persona, history = _chosen()
    return {"persona": persona, "history": history}


text_to_text.add(
    "synth_personachat", DialogueFiles(), postprocess_fn=_postprocess,
    metric_fns=[dialogue_metrics.overlap, dialogue_metrics.meteor,
                dialogue_metrics.embedding_average],
    shuffle_buffer_size=None)  # The source shuffles.
