"""Measurements, each beside its yardstick in the same run: `make bench` runs `python -m bench`. Nothing asserts."""
