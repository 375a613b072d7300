"""Layers that replace T5's self-attention, and their common parts."""
