"""Measurements, each beside its yardstick in the same run: `make bench`, docs/performance.md. No time is asserted."""
