"""A business on a real database: processes of both of its sides are killed at named points (part 29)."""
