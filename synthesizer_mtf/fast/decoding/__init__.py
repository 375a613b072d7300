"""The loops that decode one token after the other."""
