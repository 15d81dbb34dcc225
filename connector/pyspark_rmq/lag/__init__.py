"""How far streaming queries are behind."""
