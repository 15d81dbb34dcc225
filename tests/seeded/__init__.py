"""Faults that are put into the product on purpose, for the rows of docs/guarantees.md: a test must notice each.

`faults` is the table, `run` the runner: `make seeded-faults`, or `PYTHONPATH=tests python -m seeded 'a row begins'`.
tests/test_guarantees.py holds table and page together, without running a fault.
"""
