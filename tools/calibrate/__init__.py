"""`calibrate`: a model reads texts, and the mean of its attention becomes a model.

`fitting` joins the parts: `reading` and `moments` add up the attention, `means` are
their averages, and `targets` makes variables of these.

To evaluate many targets in one session, build one `reading.Graph` of the mixture
TARGET+V for each (`attention_bindings.choose`), and assign `fitting.variables` to it,
whose `heads` say which heads are TARGET.
"""

from synthesizer_mtf.tools.base import packages

main = packages.main(__name__)
