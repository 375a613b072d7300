"""Replacements of Mesh TensorFlow's `train_model`, and their parts."""
