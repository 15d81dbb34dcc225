"""Dead letters: redrive to their group, archive as Parquet files, restore from an archive."""
