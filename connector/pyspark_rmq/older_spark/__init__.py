"""For a Spark that tells a source in Python less than the newest one does: `access.spark_api` knows which."""
