"""Property strings: one at a time, and many at once."""
