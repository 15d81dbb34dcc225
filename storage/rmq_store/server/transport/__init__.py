"""Connections of clients: accepting, frames, limits."""
