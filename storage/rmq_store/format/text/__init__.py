"""Names, ids, hosts and hashes as RocketMQ writes them."""
