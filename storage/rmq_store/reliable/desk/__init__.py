"""What people see and do: the reasons why a stub waits, and void, retry and clear."""
