"""Commands about consumer groups: groups, lag, offsets."""
