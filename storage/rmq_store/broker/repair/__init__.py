"""Putting a damaged store right: findings, a plan, and the repair of each file."""
