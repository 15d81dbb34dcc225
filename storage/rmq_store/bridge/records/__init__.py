"""What a record is on each side. Pure: no network, no kafka-python."""
