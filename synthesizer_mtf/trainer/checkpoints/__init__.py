"""Checkpoints: which are complete, what they hold, and starts from others."""
