"""Sends whose outcome counts: one request builder, one table of outcomes, one loop with a budget."""
