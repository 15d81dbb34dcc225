"""The consumer's half: `Idempotency`, and the modules that make an effect happen once."""
