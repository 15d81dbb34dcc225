"""The seam to Kafka: three interfaces, and their implementation by kafka-python."""
