"""The user's own texts and their classes, for `EncoderClassifier`.

`synth_text_pairs_encoder` reads the files of `synth_text_pairs`. Their targets are the
names of classes, which gin lists:

  synthesizer_mtf.tasks.pairs.train = "/data/reviews.tsv"
  synthesizer_mtf.tasks.pairs.classes = ["neg", "pos"]
"""

from collections.abc import Iterator

from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.tasks import vocabulary


class ClassFiles(own_text.PairFiles):
  """The files with pairs of input and class."""

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str, str]]:
    """Yields what `PairFiles.parse` does; raises a ValueError without classes."""
    own_text.pair_classes()
    yield from super().parse(lines)


labels.add(
    "synth_text_pairs_encoder", ClassFiles(), classes=own_text.pair_classes,
    inputs=vocabulary.features()["inputs"],
    shuffle_buffer_size=None)  # The source shuffles.
