"""The two mirrors, their positions, topics and reports."""
