"""The state of a replica's feeder, for other processes: `pyrmq/feeder.json`, beside the lock of `replica_role`.

The feeder writes it when a connection begins or ends, and whenever it has asked the master. A feeder that was killed
leaves it as it was: `feeder_lives` tells.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from rmq_store.clock import system_clock
from rmq_store.errors import StoreError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.lazy.dataclasses import dataclass

_BYTES_MAX: Final = 1 << 16
_REASON_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class FeederState:
    """`heard_ms`: when the master last said where its log ends, `master_end`. `newest_ms`: the store time of the newest
    message of the replica then. `mean_bytes`: of the messages that this feeder has got; 0: none. `is_connected`: to the
    master's HA port, since or until `changed_ms`. `reason`: why not. All times are ms since the epoch, 0 if never.
    """

    is_connected: bool = False
    changed_ms: int = 0
    heard_ms: int = 0
    master_end: int = 0
    newest_ms: int = 0
    mean_bytes: int = 0
    reason: str = ""

    def behind_bytes(self, end: int) -> int:
        """How many bytes of the master's log, as last heard, a replica lacks whose log ends at `end`."""
        return max(self.master_end - end, 0)

    def behind_messages(self, end: int) -> int | None:
        """About how many messages these bytes are, by the mean size of those that came; None: none has come."""
        behind = self.behind_bytes(end)
        return -(-behind // self.mean_bytes) if self.mean_bytes else None if behind else 0

    def behind_ms(self, end: int, now_ms: int) -> int:
        """The age of the newest message of the replica while it lacks something; else 0."""
        return max(now_ms - self.newest_ms, 0) if self.newest_ms and self.behind_bytes(end) else 0


def write_state(root: Path, state: FeederState) -> None:
    """Let other processes know. Raises as `durable.write_atomically`."""
    content = asdict(state) | {"reason": state.reason[:_REASON_MAX]}
    durable.write_atomically(_path(root), json.dumps(content).encode() + b"\n")


def read_state(root: Path) -> FeederState | None:
    """The state that the feeder of a replica wrote last; None: none, or none that can be read."""
    try:
        content = json.loads(durable.read_limited(_path(root), _BYTES_MAX))
        known = {field.name: content[field.name] for field in fields(FeederState)}
    except (StoreError, OSError, ValueError, KeyError, TypeError):
        return None
    defaults = asdict(FeederState())
    if any(type(value) is not type(defaults[name]) for name, value in known.items()):
        return None
    return FeederState(**known)


def remove_state(root: Path) -> None:
    """Remove what a feeder told, of a store that is no replica any more. Does nothing if there is nothing."""
    durable.before("unlink", _path(root))
    _path(root).unlink(missing_ok=True)


def feeder_lives(root: Path) -> bool:
    """Whether a process feeds the replica now."""
    return OfdLock(root / "pyrmq" / "feeder.lock").who().kind != "free"


def since_text(moment_ms: int) -> str:
    """How long ago, for people."""
    return f"{max(system_clock() - moment_ms, 0) / 1000:.0f} s ago"


def _path(root: Path) -> Path:
    return root / "pyrmq" / "feeder.json"
