"""Record batches of Kafka, decoded and encoded many at once, and the rows that mirrors move."""
