"""The data of a run: its tasks, vocabularies, lengths, order and seed."""
