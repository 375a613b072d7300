"""Small commands; each runs as `python -m synthesizer_mtf.tools.NAME`."""
