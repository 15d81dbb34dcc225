"""The store: one directory, opened, with its administration and retention."""
