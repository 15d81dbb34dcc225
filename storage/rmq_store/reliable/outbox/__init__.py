"""The sender's half: stubs, `Outbox`, claims, and the way of a message to its broker."""
