"""T5's trainer, which fails early and resumes exactly, and its command."""
