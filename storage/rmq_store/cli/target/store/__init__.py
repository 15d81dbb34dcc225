"""A store answers the questions of the commands."""
