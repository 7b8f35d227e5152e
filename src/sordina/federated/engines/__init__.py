"""Where a federation runs."""
