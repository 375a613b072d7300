"""A mesh whose devices are JAX's: a program, its shardings, its state."""
