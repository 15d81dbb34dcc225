"""Sends whose outcome counts: requests, the table of outcomes, the loop with a budget, and journals in topics."""
