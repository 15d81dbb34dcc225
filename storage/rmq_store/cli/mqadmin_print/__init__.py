"""What mqadmin's commands print, for a store and for a cluster alike: its columns, labels and texts of values."""
