"""Batch and stream reads: where they start, how they are planned, and how they handle loss."""
