"""`python -m seeded [ROW ...]`."""

from __future__ import annotations

import sys

from seeded.run import main

sys.exit(1 if main(sys.argv[1:]) else 0)
