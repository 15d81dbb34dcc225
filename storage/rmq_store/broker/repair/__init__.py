"""Repair of a damaged store: findings, a plan, and the repair of each file."""
