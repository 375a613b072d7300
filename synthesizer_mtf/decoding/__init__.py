"""Decoding: the loops that generate one token at a time."""
