"""Group positions, translated from one side to the other."""
