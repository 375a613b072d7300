"""The texts of Long Range Arena (arXiv:2011.04006, section 2.2.2): IMDb as bytes.

Bytes have the ids of ByT5, 3 to 258. There is no validation split. As in the paper, the
test split takes its place: `utils.run.dataset_split` is "test".
"""

import seqio
from synthesizer_mtf.tasks import encoder_only

encoder_only.add(
    "synth_lra_text", "imdb_reviews/plain_text:1.0.0", texts=["text"],
    classes=["neg", "pos"],
    inputs=seqio.Feature(seqio.ByteVocabulary(), add_eos=False))
