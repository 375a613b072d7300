"""Additions to T5's main: checks, clusters, and messages."""
