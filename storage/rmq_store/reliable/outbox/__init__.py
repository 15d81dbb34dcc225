"""The sender's half: stubs, `Outbox`, claims, and the sends to brokers."""
