"""What several commands share, and no room above is imported."""
