"""Everything that appends: one message, a batch, staged files of many tasks, units."""
