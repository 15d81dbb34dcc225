"""The commit log opened by one process, its geometry, its units, and the walk from frame to frame."""
