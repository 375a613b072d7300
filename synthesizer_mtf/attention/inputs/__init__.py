"""What one call of a layer sees: tokens, positions and decoding state."""
