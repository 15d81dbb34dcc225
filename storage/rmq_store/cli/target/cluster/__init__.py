"""A cluster answers the questions of the commands."""
