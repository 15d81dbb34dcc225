"""The store as its users see it: topics, groups, offsets, units, staging."""
