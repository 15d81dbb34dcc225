"""What is measured: each module has `CASES`, `CURVES`, or both, and is found by `bench.catalogue`."""
