"""Attentions that cannot be mixed with synthesized logits, and their common parts."""
