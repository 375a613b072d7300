"""Layers that take the place of T5's self-attention, and what they share."""
