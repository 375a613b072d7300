"""The command and `MtfModel`: what they take, what they check, which setting holds."""
