"""`rmq dlq` over a cluster: dead letters listed, exported, redriven."""
