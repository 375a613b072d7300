"""The study of what a trained attention is worth: see ../results/calibration.md."""
