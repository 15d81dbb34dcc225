"""What is known of a streaming query beside its data: its id, its batches, its error, its end."""
