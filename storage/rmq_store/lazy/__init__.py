"""Loads modules and makes methods when they are used: those that take long and are rarely needed at a start."""
