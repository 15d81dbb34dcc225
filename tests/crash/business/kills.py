"""Part 29: senders, relays and consumers of rmq_store.reliable are killed at named points, on each kind of database.

A business row and its stub commit together. Afterwards each group that a stub names must have exactly one effect of it,
written through the connection that its handler was given; effects elsewhere at least one, and a second one only if the
manual list says so; what was rolled back has none; steps of a key come in order. Meanwhile answers get lost, brokers
lose what they have acknowledged, Redis is flushed and restarted, databases are killed, clocks jump, leases end while
their worker is alive, and one message kills everybody who sends it.
"""

from __future__ import annotations

import random
import shutil
from functools import partial

from crash.business import teeth  # noqa: F401  its protections are entered by name
from crash.business.life import Life, points_of
from crash.dying import quiet
from crash.part import Counters, Part, Trial
from helpers import servers

KINDS = ("sqlite", "postgresql", "mariadb")
LIFE = 18


def run(kind: str, trial: Trial) -> Counters:
    """`cycles` kills, `LIFE` in each life."""
    quiet()
    counters = Counters()
    planned = points_of(trial.seed, trial.cycles)
    for number in range(0, trial.cycles, LIFE):
        directory = trial.directory / f"life{number}"
        chance = random.Random(f"{trial.seed}/{number}")
        # Short runs and the chunks of long ones begin with each kind of life.
        life = Life(kind, directory, trial.seed + number // LIFE, chance)
        found = life.run(planned[number : number + LIFE], trial.tick)
        if found.violations:
            found.first = f"life {number // LIFE}: {found.first}"
        else:
            shutil.rmtree(directory)
        counters.add(found)
    return counters


def cannot_run(kind: str) -> str:
    """Why not on this machine."""
    needed: list[servers.Server] = [servers.redis()]
    if kind != "sqlite":
        needed.append({"postgresql": servers.postgresql, "mariadb": servers.mariadb}[kind]())
    return "; ".join(reason for server in needed if (reason := server.missing()))


# Each once: most of them do not know what database they are on.
PROTECTIONS = {
    "sqlite": (
        "redis_decides", "later_is_success", "stub_says_done", "unseen_doubt", "mark_before_send", "uncounted_claims",
        "no_fresh_look", "keys_apart",
    ),
    "postgresql": ("inbox_apart",),
    "mariadb": ("no_inbox",),
}  # fmt: skip

PARTS = tuple(
    Part(
        f"business_{kind}", "29", f"both sides of rmq_store.reliable killed at named points, {name}", "kills",
        harness=50, crash=144, soak=1008, chunk=72, run=partial(run, kind), protections=PROTECTIONS[kind],
        bites_within=LIFE, cannot_run=partial(cannot_run, kind),
    )
    for kind, name in zip(KINDS, ("SQLite", "PostgreSQL", "MariaDB"), strict=True)
)  # fmt: skip
