"""`hugging_face`: from Mesh TensorFlow to Hugging Face and PyTorch, and back."""

from synthesizer_mtf.tools.base import packages

main = packages.main(__name__)
