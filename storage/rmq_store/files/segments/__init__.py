"""Runs of equally sized files: made ahead, mapped, pinned, listed, copied."""
