"""Positions of mirrors, stored on the side that they write to, and the choice of topics."""
