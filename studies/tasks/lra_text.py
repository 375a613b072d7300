"""The texts of Long Range Arena (arXiv:2011.04006, section 2.2.2): IMDb as bytes.

The ids are those of ByT5, 3 to 258. Texts longer than `utils.run.sequence_length` are
cut. As in the paper, the test split replaces the validation split.
"""

import seqio
from synthesizer_mtf.tasks import classification

classification.add_encoder(
    "synth_lra_text", classification.IMDB, ["text"], ["neg", "pos"],
    seqio.Feature(seqio.ByteVocabulary(), add_eos=False))
