"""The synthesizing functions, one module each; `names.py` is their registry."""
