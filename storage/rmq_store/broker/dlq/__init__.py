"""Dead letters: redriven to their group, archived as Parquet, restored."""
