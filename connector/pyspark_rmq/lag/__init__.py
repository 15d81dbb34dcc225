"""The lag of streaming queries: a listener, the calculation, and metrics."""
