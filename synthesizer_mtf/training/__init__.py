"""Training: estimator, optimizer, checkpoints, warm starts, and checks of bindings."""
