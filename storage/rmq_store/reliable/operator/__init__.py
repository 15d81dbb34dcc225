"""For people: the reasons why a stub waits, and void, retry and clear."""
