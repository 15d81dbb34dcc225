"""Commands that show a store: top, topics, metrics."""
