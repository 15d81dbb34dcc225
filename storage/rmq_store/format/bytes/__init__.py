"""Pieces of buffers: gathered many at once, as text, by the C extension where it was built."""
