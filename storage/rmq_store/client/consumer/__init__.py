"""The three consumers: push, lite pull, simple."""
