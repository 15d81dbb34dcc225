"""A streaming query apart from its data: its id, its batches, its error, its end."""
