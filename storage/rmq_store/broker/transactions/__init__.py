"""Transactional messages of a store: half messages, their ends, and the questions to their producers."""
