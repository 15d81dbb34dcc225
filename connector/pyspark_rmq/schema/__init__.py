"""Columns: those of the source, those that the sink takes, and conditions on rows."""
