"""Shared by the commands: options, tables, screens, progress, names and times."""
