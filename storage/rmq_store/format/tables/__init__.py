"""JSON tables, the checkpoint file, and the Arrow schemas of messages."""
