"""ListOps of Long Range Arena (arXiv:2011.04006, section 2.2.1), for classifiers.

`synth_lra_listops` draws its expressions. Their sizes are those of the paper, unless
gin binds others:

  synthesizer_mtf.tasks.lra_listops.min_length = 20
  synthesizer_mtf.tasks.lra_listops.max_length = 200

The seed decides all examples. The examples for validation are drawn first, then those
for the test, and then those for training. No expression occurs twice.

`synth_lra_listops_files` reads the files of the release, basic_train.tsv, basic_val.tsv
and basic_test.tsv, from one folder. Gin names this folder. If gin does not, the
environment does:

  synthesizer_mtf.tasks.lra_listops_files.directory = "/data/listops-1000"
  SYNTHESIZER_MTF_LRA_LISTOPS

These files write an expression as a binary tree in parentheses, so that [MAX 2 9 ] is
( ( ( [MAX 2 ) 9 ) ] ). The parentheses add no information, and the release's own reader
drops them. Without them the lengths are those that the paper gives, 500 to 2,000.
`lra_listops_files.parentheses = True` keeps them.
(The first version of the release's reader also dropped the brackets that end a list,
and with them the structure. The present version renames these brackets.)
"""

from collections.abc import Iterator
from collections.abc import Sequence
import itertools
from typing import Any

import gin
import seqio
from studies.tasks import listops
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import text_source
import tensorflow.compat.v2 as tf

_PARAMETER = "synthesizer_mtf.tasks.lra_listops"
_FILES_PARAMETER = "synthesizer_mtf.tasks.lra_listops_files"
_FILES_VARIABLE = "SYNTHESIZER_MTF_LRA_LISTOPS"
_FILE_NAMES = {"train": "basic_train.tsv", "validation": "basic_val.tsv",
               "test": "basic_test.tsv"}
_HEADER = "Source\tTarget"
_SPLITS = ("validation", "test", "train")  # In the order of drawing.
_PARENTHESES = ("(", ")")
_WORDS = (*listops.WORDS, *_PARENTHESES)


@gin.configurable("lra_listops", module="synthesizer_mtf.tasks")
def _chosen(max_depth=10, max_arguments=10, min_length=500, max_length=2000, seed=0,
            train_examples=96000, validation_examples=2000, test_examples=2000):
  """Returns (a `Grammar`, seed, examples by split); gin passes the arguments."""
  grammar = listops.Grammar(max_depth, max_arguments, min_length, max_length)
  grammar.check(_PARAMETER)
  sizes = {"train": train_examples, "validation": validation_examples,
           "test": test_examples}
  numbers = {f"{split}_examples": (number, 1) for split, number in sizes.items()}
  for name, (number, least) in {"seed": (seed, 0), **numbers}.items():
    if not checks.is_whole(number, least):
      raise checks.Error(f"`{_PARAMETER}.{name}` is {number!r} but must be "
                         f"{checks.integer(least)}; change it.")
  return grammar, seed, sizes


class DrawnExpressions(seqio.FunctionDataSource):
  """Expressions that are drawn while they are read."""

  def __init__(self):
    super().__init__(_drawn, splits=_SPLITS)

  def num_input_examples(self, split: str) -> int:
    return _chosen()[-1][split]

  def made_with(self) -> dict[str, Any]:
    """Returns what a cache of the examples depends on."""
    grammar, seed, sizes = _chosen()
    return {**grammar._asdict(), "seed": seed, "examples": sizes}


def _drawn(split, shuffle_files, seed=None):
  """A tf.data.Dataset of {"inputs": <string>[], "targets": <string>[]}."""
  del shuffle_files, seed  # Expressions are drawn independently of each other.
  grammar, own_seed, sizes = _chosen()
  start = sum(sizes[other] for other in _SPLITS[:_SPLITS.index(split)])

  def rows():
    found = listops.expressions(grammar, own_seed)
    for text, value in itertools.islice(found, start, start + sizes[split]):
      yield {"inputs": text, "targets": str(value)}

  string = tf.TensorSpec([], tf.string)
  return tf.data.Dataset.from_generator(
      rows, output_signature={"inputs": string, "targets": string})


@gin.configurable("lra_listops_files", module="synthesizer_mtf.tasks")
def _chosen_files(directory=None, parentheses=False):
  """Returns (directory, parentheses); gin passes the arguments."""
  if not isinstance(parentheses, bool):
    raise checks.Error(f"`{_FILES_PARAMETER}.parentheses` is {parentheses!r} but must "
                       "be True or False; change it.")
  return directory, parentheses


class ExpressionFiles(text_source.FilesDataSource):
  """The TSV files of the release."""

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    """See the base class."""
    return text_source.chosen_file(
        f"{_FILES_PARAMETER}.directory", _FILES_VARIABLE, _chosen_files()[0],
        "Long Range Arena's release", _FILE_NAMES[split])

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
    """Yields (expression, digit); see the base class for what is raised."""
    keeps_parentheses = _chosen_files()[1]
    rows = iter(lines)
    if next(rows) != _HEADER:
      raise lines.error("the release's files begin with 'Source', a tab and 'Target'; "
                        "name its folder, or fetch it again.")
    for row in rows:
      expression, value = _columns(lines, row)
      found = expression.split()
      _check_expression(lines, found)
      yield " ".join(word for word in found
                     if keeps_parentheses or word not in _PARENTHESES), value

  def made_with(self) -> dict[str, Any]:
    """Returns what a cache of the examples depends on."""
    return {"parentheses": _chosen_files()[1]}


def _columns(lines, row):
  columns = row.split("\t")
  if len(columns) != 2 or columns[1] not in listops.DIGITS:
    raise lines.error(f"an expression, a tab and a digit are needed, not "
                      f"{row[:20]!r}...{row[-20:]!r}; is the file cut off? Fetch it "
                      "again.")
  return columns


def _check_expression(lines, found):
  unknown = [word for word in found if word not in _WORDS]
  if unknown:
    raise lines.error(f"{unknown[0][:20]!r} is no word of ListOps, which are "
                      f"{' '.join(_WORDS)}; fetch the file again.")
  opened = sum(word in listops.OPERATORS for word in found)
  for opening, closing in ((opened, found.count(listops.END)),
                           map(found.count, _PARENTHESES)):
    if opening != closing:
      raise lines.error(f"the expression opens {opening} brackets and closes "
                        f"{closing}; is the file cut off? Fetch it again.")


class WordVocabulary(labels.LabelVocabulary):
  """Ids 1, 2, ... for words, in the order of the list; 0 for padding."""

  def identity(self) -> str:
    """Returns a string that vocabularies share only if they have the same ids."""
    return f"words {' '.join(self.labels)}"

  def _encode(self, s):
    encode = super()._encode
    return [word_id for word in s.split() for word_id in encode(word)]

  def _decode(self, ids):
    decode = super()._decode
    return " ".join(filter(None, (decode([i]) for i in ids)))

  def _encode_tf(self, s):
    words = tf.strings.split(s)
    found = tf.cast(tf.equal(words[:, tf.newaxis], self.labels), tf.int32)
    return tf.linalg.matvec(found, tf.range(1, self._base_vocab_size))

  def _decode_tf(self, ids):
    words = tf.gather(("", *self.labels), ids)
    return tf.strings.strip(tf.strings.reduce_join(words, -1, separator=" "))


_INPUTS = seqio.Feature(WordVocabulary(_WORDS), add_eos=False)

labels.add("synth_lra_listops", DrawnExpressions(), classes=listops.DIGITS,
           inputs=_INPUTS)
labels.add("synth_lra_listops_files", ExpressionFiles(), classes=listops.DIGITS,
           inputs=_INPUTS, shuffle_buffer_size=None)  # The source shuffles.
