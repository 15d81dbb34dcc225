"""`rmq dlq`: dead letters listed, exported, redriven."""
