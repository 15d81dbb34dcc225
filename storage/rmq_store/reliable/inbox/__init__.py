"""The consumer's half: `Idempotency`, and all that makes an effect happen once."""
