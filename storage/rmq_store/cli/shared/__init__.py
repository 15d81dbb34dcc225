"""What the commands share: options, tables, screens, progress, names and times."""
