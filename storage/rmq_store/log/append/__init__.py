"""Appending: one batch or group, written, made visible, flushed."""
