"""What watches a run: progress, words, stopping, guards, validation, the best."""
