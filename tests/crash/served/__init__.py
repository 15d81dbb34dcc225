"""A served store whose server is killed at named points of a request (part 30)."""
