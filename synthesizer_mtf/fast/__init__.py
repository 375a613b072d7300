"""The same numbers, faster: attention, T5's other layers, losses, updates, decoding."""
