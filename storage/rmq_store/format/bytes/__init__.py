"""Pieces of buffers: many gathered at once, read as text, or processed by the C extension if it was built."""
