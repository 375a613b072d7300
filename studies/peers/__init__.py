"""T5 in PyTorch, JAX and CTranslate2, beside the rows of `benchmark`."""
