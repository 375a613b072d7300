"""Around T5's main: checks, checkpoints, clusters, and messages."""
