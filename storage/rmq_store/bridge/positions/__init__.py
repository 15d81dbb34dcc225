"""How far mirrors have come, kept on the side that they write to, and which topics they copy."""
