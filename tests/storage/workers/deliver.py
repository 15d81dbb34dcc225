"""Process of test_schedule_processes: `<store> <seed> <locked | unlocked> <end time>`. Looks for due messages until the
store's clock has reached the end time and nothing waits; `unlocked`: as if it were alone. Prints how many it delivered.
When it has the store open it makes a file `ready-<seed>` beside the store.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from rmq_store import Store

DEADLINE_S = 55


def main() -> None:
    path, seed, mode, end_ms = sys.argv[1:]
    chance = random.Random(int(seed))
    deadline_s = time.monotonic() + DEADLINE_S
    delivered = 0
    with Store.open(path) as store:
        Path(path).with_name(f"ready-{seed}").touch()
        if mode == "unlocked":
            store.schedule._lock.exclusive_if_free = lambda: nullcontext(True)  # type: ignore[method-assign,assignment]
        while True:
            result = store.schedule.deliver_due(chance.choice([1, 7, 50, 400]))
            delivered += result.delivered
            if result.next_due_ms is None and store.clock() >= int(end_ms):
                break
            assert time.monotonic() < deadline_s
            if not result.delivered:
                time.sleep(0.001)
    print(delivered)  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
