"""Batch and stream reads: where they start, what they plan, what they do about loss."""
