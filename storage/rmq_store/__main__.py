"""Entry point of `rmq`, and of `python -m rmq_store`: imports the command inside a `try`, because Ctrl-C may come while
its modules are imported.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command. Ctrl-C, whenever it comes: one line on stderr, and exit code 130."""
    try:
        from rmq_store.cli import main as run

        run()
    except KeyboardInterrupt:
        print("rmq: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
