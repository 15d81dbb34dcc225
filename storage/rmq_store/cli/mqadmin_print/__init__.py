"""The output of mqadmin's commands, for a store and for a cluster alike: its columns, labels and texts of values."""
