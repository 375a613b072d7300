"""What one call of a layer sees: its tokens, their positions, who may see whom."""
