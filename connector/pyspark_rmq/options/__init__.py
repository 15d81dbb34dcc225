"""The options of the data source: a table, and their checked values."""
