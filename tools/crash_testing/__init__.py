"""The part of `crash_test` that trains: `trainer.py`."""
