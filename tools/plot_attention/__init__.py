"""`plot_attention`: runs a trained model on texts, and draws its attention."""

from synthesizer_mtf.tools.base import packages

main = packages.main(__name__)
