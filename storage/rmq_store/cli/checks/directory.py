"""Checks of one store's directory: its owner, its file system, its free space, and what earlier processes left in it.

Nothing is opened for writing, and nothing is changed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.store_log import delay_table
from rmq_store.broker.write.disk_space import usage_percent
from rmq_store.cli.checks import FAIL, OK, WARN, Finding
from rmq_store.cli.shared.output import time_text
from rmq_store.errors import NotAStoreError, StoreError, StoreKindError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.state_page import StatePage
from rmq_store.format.text.names import SCHEDULE_TOPIC, parse_segment_name
from rmq_store.kinds import COMMON, Effect, Seen, find_kinds
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.feeder_state import feeder_lives, read_state, since_text
from rmq_store.log.recovery.starting_point import OUR_LOCK_TEXT
from rmq_store.log.replica_role import fed_by
from rmq_store.log.slaves_told import slaves_told

FUTURE_S = 5.0
FORGOTTEN_S = 24 * 3600.0

_REMOTE = ("nfs", "cifs", "smb", "9p", "ceph", "gluster", "lustre", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "afs")
_IN_MEMORY = "the store is in memory, and gone when the machine stops"
_FLEETING = {"overlay": "it goes with its container", "tmpfs": _IN_MEMORY, "ramfs": _IN_MEMORY}


def checks(root: Path) -> list[Finding]:
    """All checks; only the first one if there is no store."""
    there, of_kind = opens(root), kind(root)
    if there.status == FAIL and not (root / "commitlog").is_dir():
        return [there, *(finding for finding in of_kind if finding.status == FAIL)]
    return [
        there, *of_kind, *replica(root), *slaves(root), contents(root), tables(root), owner(root), links(root),
        file_system(root), disk(root), clock(root), writers(root), clean_stop(root), flushes(root),
        accepted_damage(root), delay_levels(root), leftovers(root),
    ]  # fmt: skip


def opens(root: Path) -> Finding:
    """Check that the store can be read."""
    from rmq_store import Store

    try:
        with Store.open(root, read_only=True) as store:
            start, end = store.log_range()
            return Finding("store", OK, f"{root}: {len(store.topics())} topics, bytes {start} to {end} of the log")
    except StoreKindError as error:
        return Finding("store", FAIL, str(error), "docs/stores.md says what can be done with which kind of store")
    except NotAStoreError as error:
        return Finding("store", FAIL, str(error), "name the directory that holds commitlog/")
    except (StoreError, OSError) as error:
        return Finding("store", FAIL, str(error), f"rmq verify --store {root} says what is wrong with it")


def kind(root: Path) -> list[Finding]:
    """Name the kinds of the store, and what they mean for its users."""
    try:
        seen = find_kinds(root)
    except OSError as error:
        return [Finding("kind", WARN, f"not known: {error.filename or root}: {error.strerror}",
                        "check the store as the user it belongs to")]  # fmt: skip
    if not seen:
        return [Finding("kind", OK, f"{COMMON.name}: {COMMON.what}")]
    return [_kind(one) for one in seen]


def _kind(seen: Seen) -> Finding:
    effect, text = seen.kind.effect, f"{seen.kind.name}: {seen.path}: {seen.kind.what}"
    if effect is Effect.NONE:
        return Finding("kind", OK, f"{text}. {seen.kind.advice}")
    return Finding("kind", FAIL if effect is Effect.NOT_OPENED else WARN, text, seen.kind.advice)


def replica(root: Path) -> list[Finding]:
    """Say of which broker the store is a replica, and who feeds it."""
    try:
        known = StoreFile.load(root)
    except (StoreError, OSError):  # `opens` says why
        return []
    if known is None or known.replica is None:
        return []
    role, state, lives = known.replica, read_state(root), feeder_lives(root)
    found = [Finding("replica", OK, f"of broker {role.broker} of cluster {role.cluster}, {fed_by(root)}")]
    if state is None:
        return found
    behind = "the master's end is not known yet"
    if state.heard_ms:
        behind = f"{since_text(state.heard_ms)} the master's log ended at {state.master_end}"
        if (end := _log_end(root)) is not None:
            behind += f", {state.behind_bytes(end)} bytes more than here"
    if lives and not state.is_connected:
        reason = f": {state.reason}" if state.reason else ""
        since = since_text(state.changed_ms)
        text = f"the feeder lost {role.ha_address} {since}, or never had it{reason}; {behind}"
        return [*found, Finding("replica", WARN, text, "is the broker there? The feeder tries again by itself")]
    ended = "" if lives else f"; {state.reason or 'the feeder was killed'}"
    return [*found, Finding("replica", OK, behind + ended)]


def slaves(root: Path) -> list[Finding]:
    """Of a master: its role, and how many slaves there are for the sends that wait for them."""
    told = slaves_told(root)
    if told is None or not (told.needed or told.slowest_end >= 0):
        return []
    end = _log_end(root)
    role = f"{told.role.name}, inSyncReplicas={told.in_sync_replicas}" if told.in_sync_replicas else told.role.name
    text = f"{role}: {told.count} in reach"
    behind = told.slowest_behind_bytes(end) if end is not None else None
    if behind is not None:
        text += f", the slowest one is {behind} bytes behind the end of the log, {end}"
    if told.count >= told.needed:
        return [Finding("slaves", OK, text)]
    status = "FLUSH_SLAVE_TIMEOUT (12)" if told.in_sync_replicas else "SLAVE_NOT_AVAILABLE (11)"
    if not told.is_served:
        fix = f"rmq broker run {root} --role SYNC_MASTER; without --role the store gives the role up"
        return [Finding("slaves", WARN, f"{role}, and no server: what processes append gets {status}", fix)]
    fix = "start a slave: rmq broker run --role SLAVE, or rmq follow --as-slave; the server's log names whom it refused"
    return [Finding("slaves", WARN, f"{text}, and sends wait for {told.needed}: they get {status}", fix)]


def contents(root: Path) -> Finding:
    """Say what the other checks do not cover, so that nobody takes them for more."""
    return Finding("contents", OK, f"not looked at: rmq verify --store {root} checks every message, queue and index")


def tables(root: Path) -> Finding:
    """Check the tables in config/ for entries that cannot be used. Other entries can be used nevertheless."""
    from rmq_store.broker.metadata.groups import FilterTable, GroupTable
    from rmq_store.broker.metadata.odd_entries import OddEntry
    from rmq_store.broker.metadata.offsets import DelayOffsetTable, LmqConflict, OffsetTable
    from rmq_store.broker.metadata.topics import TopicTable

    fix = f"rmq verify --store {root} names all of them, and rmq repair brings back what a .bak has; others may stay"
    try:
        offsets = OffsetTable(root, enable_lmq=_config(root).enable_lmq)
        found = [
            entry
            for table in (TopicTable(root), GroupTable(root), offsets, DelayOffsetTable(root), FilterTable(root))
            for entry in table.odd()
        ]
    except StoreError as error:
        return Finding("tables", FAIL, str(error), f"rmq repair {root} --dry-run says what can be put right")
    if not found:
        return Finding("tables", OK, "every entry can be used")
    conflicts = [entry for entry in found if isinstance(entry, LmqConflict)]
    if conflicts:
        fix = "rmq updateBrokerConfig -k enableLmq -v true (or false) says which file the store's broker reads"
    first = [*conflicts, *found][0]
    where = f"config/{Path(first.path).name}: " if isinstance(first, OddEntry) else ""
    more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
    return Finding("tables", WARN, f"{where}{first.reason}: left out of lists, and kept as it is{more}", fix)


def owner(root: Path, uid: int | None = None) -> Finding:
    """Check that this user may write everything, and nobody else may."""
    me = os.geteuid() if uid is None else uid
    parts = [root, *(root / name for name in ("commitlog", "consumequeue", "index", "config", "pyrmq", "lock"))]
    for path in (path for path in parts if path.exists()):
        status = path.stat()
        if status.st_mode & stat.S_IWOTH:
            return Finding("permissions", FAIL, f"{path} may be written by everybody", f"chmod -R o-w {root}")
        if status.st_uid != me:
            text = f"{path} belongs to user {status.st_uid}, this is user {me}"
            if me == 0:
                return Finding("permissions", WARN, f"{text}: files that root makes are closed to that user",
                               f"run as user {status.st_uid}")  # fmt: skip
            return Finding("permissions", WARN if os.access(path, os.R_OK) else FAIL,
                           f"{text}: it can be read at best", f"run as user {status.st_uid}")  # fmt: skip
        needed = stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if path.is_dir() else 0)
        if status.st_mode & needed != needed:
            return Finding("permissions", FAIL, f"{path} has mode {stat.S_IMODE(status.st_mode):o}",
                           f"chmod u+rw{'x' if path.is_dir() else ''} {path}")  # fmt: skip
    return Finding("permissions", OK, f"all belongs to user {me}")


def links(root: Path) -> Finding:
    """Check links. If a segment is no regular file, nobody can open the store. If a directory that writers create is a
    link, the store can only be read.
    """
    for path in _no_files(root / "commitlog"):
        what = "a symbolic link" if path.is_symlink() else "no regular file"
        fix = "put the file itself there; rmq verify names all that are none"
        return Finding("links", FAIL, f"{path} is {what}: the store cannot be opened", fix)
    for path in (root / name for name in ("commitlog", "config", "pyrmq")):
        if path.is_symlink():
            text = f"{path} is a symbolic link: the store can be read, but not written"
            return Finding("links", WARN, text, "mount the other disk there, or move the whole store to it")
    return Finding("links", OK, "none")


def _no_files(directory: Path) -> list[Path]:
    """The entries with a segment's name that are no regular files."""
    if not directory.is_dir():
        return []
    with os.scandir(directory) as entries:
        others = [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]
    return [directory / name for name in sorted(others) if parse_segment_name(name) is not None]


def file_system(root: Path, mounts: str | None = None) -> Finding:
    """Check that the file system is local: processes share maps and record locks, which a network file system does not
    offer. `mounts` has the format of /proc/self/mountinfo.
    """
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    kind, is_read_only = _mount_of(root.resolve(), mounts)
    if kind.startswith(_REMOTE):
        return Finding("file system", FAIL, f"{kind}: locks and maps do not hold between machines",
                       "put the store on a local disk; mirror or copy it with rmq backup")  # fmt: skip
    if is_read_only:
        text = f"{kind}: mounted read-only, so the store can be neither written nor repaired"
        return Finding("file system", WARN, text, "mount -o remount,rw; dmesg, if the kernel has done this")
    if kind in _FLEETING:
        return Finding("file system", WARN, f"{kind}: {_FLEETING[kind]}", "put the store on a volume")
    return Finding("file system", OK, kind or "unknown")


def _mount_of(path: Path, mounts: str) -> tuple[str, bool]:
    """The file system of the longest mount point above `path`, the newest of equals; True if it is read-only."""
    best, found = -1, ("", False)
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split()[4].replace("\\040", " "))
        if (path == point or point in path.parents) and len(point.parts) >= best:
            kind, *_, of_all = rest.split()
            options = {*fields.split()[5].split(","), *of_all.split(",")}
            best, found = len(point.parts), (kind, "ro" in options)
    return found


def disk(root: Path, usage: Callable[[Path], int | None] = usage_percent) -> Finding:
    """Compare the use of the disk with diskSpaceWarningLevelRatio and diskMaxUsedSpaceRatio."""
    config = _config(root)
    percent = usage(root)
    if percent is None:
        return Finding("disk", WARN, "how full it is cannot be found out", "look with df")
    text, fix = f"{percent} % in use", "rmq retention status says what may go, rmq retention run deletes it"
    if percent > config.disk_space_warning_level_ratio:
        limit = config.disk_space_warning_level_ratio
        return Finding("disk", FAIL, f"{text}, more than diskSpaceWarningLevelRatio={limit}: nothing is written", fix)
    if percent > config.disk_max_used_space_ratio:
        limit = config.disk_max_used_space_ratio
        return Finding("disk", WARN, f"{text}, more than diskMaxUsedSpaceRatio={limit}: messages go at any hour", fix)
    return Finding("disk", OK, text)


def clock(root: Path, now_s: float | None = None) -> Finding:
    """Check that the store was not written in the future: then the clock was set back, and delayed messages come late.
    """
    if (root / "pyrmq" / "clock").exists():
        return Finding("clock", WARN, "a store for tests: pyrmq/clock says what time it is", "remove pyrmq/clock")
    now = time.time() if now_s is None else now_s
    newest = max((path.lstat().st_mtime for path in (root / "commitlog").glob("*")), default=now)
    if newest - now > FUTURE_S:
        text = f"the log was written at {time_text(int(newest * 1e6))}, {newest - now:.0f} s from now"
        return Finding("clock", FAIL, text, "set this machine's clock (NTP); delayed messages and retention go by it")
    return Finding("clock", OK, time_text(int(now * 1e6)))


def writers(root: Path) -> Finding:
    """Name the processes that have the store open for writing."""
    lock = OfdLock(root / "lock")
    broker = lock.posix_holder()
    if broker is not None:
        return Finding("writers", WARN, f"a RocketMQ broker runs on it (process {broker}): it can be read only",
                       "stop the broker before you write")  # fmt: skip
    state = lock.who()
    if state.kind == "free":
        return Finding("writers", OK, "nobody")
    return Finding("writers", OK, f"process {state.pid or '(unknown)'}, and perhaps others")


def clean_stop(root: Path) -> Finding:
    """Check that the last writer has closed the store."""
    if not (root / "abort").exists() or OfdLock(root / "lock").who().kind != "free":
        return Finding("last stop", OK, "clean, or it is in use")
    try:
        ours = (root / "lock").read_bytes()[: len(OUR_LOCK_TEXT)] == OUR_LOCK_TEXT
    except OSError:
        ours = False
    who = "a process of ours" if ours else "a RocketMQ broker"
    return Finding("last stop", WARN, f"{who} ended without closing it",
                   "nothing: who opens it next for writing recovers it. rmq verify looks at it before")  # fmt: skip


def flushes(root: Path) -> Finding:
    """Check that no fsync has failed: after a failure every process refuses to write."""
    try:
        page = StatePage(root / "pyrmq" / "state", writable=False)
    except (OSError, StoreError):
        return Finding("flushes", OK, "no process of ours has written here")
    if page.counts() and page.poison:
        fix = "look at the disk (dmesg), stop all processes that have the store open, and start them again"
        return Finding("flushes", FAIL, "an fsync failed: writes are refused", fix)
    return Finding("flushes", OK, "none failed")


def accepted_damage(root: Path) -> Finding:
    """Report accepted damage."""
    try:
        accepted = AcceptedDamage.load(root / "pyrmq")
    except StoreError as error:
        return Finding("kept damage", FAIL, str(error), f"rmq repair --store {root}")
    if not accepted:
        return Finding("kept damage", OK, "none")
    size = sum(bad.end - bad.start for bad in accepted.ranges)
    first = f"the first at byte {accepted.ranges[0].start}: {accepted.ranges[0].reason}"
    text = f"{len(accepted.ranges)} ranges, {size} bytes of the log; {first}"
    return Finding("kept damage", WARN, text, "rmq verify says where; reading such a message is an error")


def delay_levels(root: Path) -> Finding:
    """Check that the lengths of delay levels are configured; of a broker's store only its messages show them."""
    from rmq_store import Store

    try:
        known = StoreFile.load(root)
        if known is not None and known.config.message_delay_level:
            return Finding("delay levels", OK, f"messageDelayLevel={known.config.message_delay_level}")
        with Store.open(root, read_only=True) as store:
            table = delay_table(root, replace(store.config, message_delay_level=""))
        queues = root / "consumequeue" / SCHEDULE_TOPIC
        used = {int(name) + 1 for name in os.listdir(queues) if name.isascii() and name.isdigit()}  # noqa: PTH208
    except FileNotFoundError:
        used = set()
    except (StoreError, OSError) as error:
        return Finding("delay levels", FAIL, str(error), f"rmq verify --store {root} says what is wrong with it")
    if not used:
        return Finding("delay levels", OK, "no message was ever delayed: those of RocketMQ are assumed")
    told = {level: table.delays_ms[level - 1] // 1000 for level in sorted(table.inferred or ())}
    text = f"messages tell: {', '.join(f'level {level} {delay_s} s' for level, delay_s in told.items()) or 'none'}"
    if silent := sorted(level for level in used if table.is_assumed(level)):
        text += f"; nothing tells those of levels {', '.join(map(str, silent))}: RocketMQ's are assumed"
        return Finding("delay levels", WARN, text, "rmq updateBrokerConfig -k messageDelayLevel -v with the broker's")
    return Finding("delay levels", OK, f"{text}; for others RocketMQ's are assumed")


def leftovers(root: Path, now_s: float | None = None) -> Finding:
    """Report files of killed processes that nobody has removed."""
    old = (time.time() if now_s is None else now_s) - FORGOTTEN_S
    found = [path for name in ("", "config", "pyrmq") for path in (root / name).glob("*.tmp")]
    found += (root / "pyrmq" / "staging").glob("*")
    forgotten = [path for path in found if path.lstat().st_mtime < old]
    if not forgotten:
        return Finding("leftovers", OK, "none")
    text = f"{len(forgotten)} of killed writes, the first {forgotten[0]}"
    fix = "the next commit of a Spark sink removes those in staging/; others may be removed by hand"
    return Finding("leftovers", WARN, text, fix)


def _log_end(root: Path) -> int | None:
    """The end of the log that readers see; None: `opens` says why there is none."""
    from rmq_store import Store

    try:
        with Store.open(root, read_only=True) as store:
            return store.log_range()[1]
    except (StoreError, OSError):
        return None


def _config(root: Path) -> StoreConfig:
    try:
        known = StoreFile.load(root)
    except StoreError:
        known = None  # `opens` tells
    return known.config if known else StoreConfig()
