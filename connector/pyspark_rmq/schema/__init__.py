"""Columns: what the source gives, what the sink takes, and which rows are wanted."""
