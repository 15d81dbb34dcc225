"""Bytes <-> values of every file of the store. No I/O, no clock."""
