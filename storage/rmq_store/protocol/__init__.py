"""Plain values that clients, the processors of a broker and the network share: queues, messages, results, codes."""
