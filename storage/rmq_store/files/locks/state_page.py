"""The state page: where the log ends, shared by every process through one mapped file.

    word  name             meaning
    0     magic            STATE_MAGIC; zero while a first opener recovers and after the last closer; written last
    1     boot_high        boot id of the kernel, upper half
    2     boot_low         boot id of the kernel, lower half
    3     device           st_dev of this file: a copied store has another device or
    4     inode            another inode
    5     appended_end     the log is complete, and its views are, below it
    6     flushed_end      the log is on disk below it; stored only after an fsync
    7     flushing         1 while an fsync runs: a process that finds it set follows one that failed or died. 2 while
                           syncfs runs after that, or in a recovery: the kernel reports an error of it only once
    8     poison           not 0: a flush failed, writes are refused
    9     intent_start     where the append under way begins
    10    intent_end       where it ends; the intent counts only while intent_end > appended_end
    11    index_file       name of the newest index file before that append, as a number; 0 = none; -1 = not kept
    12    index_header_0   the 40 header bytes of that file, as five words
    13    index_header_1
    14    index_header_2
    15    index_header_3
    16    index_header_4
    17    last_record      offset of the newest record; -1: none
    18    store_timestamp  storeTimestamp of the newest record, ms
    19    append_waiting   1: a process waits for the append lock and must be woken
    20    append_holder    pid of the holder of the append lock; 0: none
    21    flush_waiting    the same two for the flush lock
    22    flush_holder
    23    append_looked    time of the last poll by a waiter for the append lock, ns of the monotonic clock
    24    flush_looked     the same for the flush lock
    25    open_waiting     1: a process waits to open the store, for byte 0 of `lock`, and must be woken
    26    open_holder      0
    27    open_looked      as append_looked, for waiters of byte 0
    28    broker_role      `log.broker_role.BrokerRole` of who serves the store, or has served it last
    29    in_sync_replicas who must have a message, the master included; 0: a slave, by the rules of 4.x
    30    slave_timeout    for how long a send waits for slaves, ms
    31    slave_count      slaves that are connected to the server and not far behind
    32    replicated_end   the log is, below it, at as many slaves as a send waits for
    33    slowest_end      of the slaves that are connected, the least that one has; -1: none is connected
    34    replica_waiting  1: a process waits for replicated_end to grow, and must be woken
    35    replica_holder   0
    36    replica_looked   0
    37    growth_waiting   1: the server waits for appended_end to grow, and may be woken
    38    growth_holder    0
    39    growth_looked    0

Words are little-endian int64. Each is written by one aligned 8-byte store through a numpy view: `struct.pack_into`
writes byte by byte, and another process could read half a value. A fence of the extension stands before each store
and behind each load of a word of the append path (release, acquire), for processors that keep no order by themselves
(ARM); without the extension the page is right on x86 only. This page is never fsynced. After a reboot only its
flushed end counts, and whether a flush had failed or was running. Words 28 to 30 stay whatever first openers publish.
"""

from __future__ import annotations

import functools
import mmap
import os
import time
import uuid
from pathlib import Path

import numpy as np

from rmq_store import real_time
from rmq_store.files import durable
from rmq_store.files.locks.futex import Futex
from rmq_store.files.mapping import map_file
from rmq_store.format.bytes import native

STATE_MAGIC = int.from_bytes(b"pyrmqst1", "little")
STATE_BYTES = 4096

WORDS = (
    "magic", "boot_high", "boot_low", "device", "inode", "appended_end", "flushed_end", "flushing", "poison",
    "intent_start", "intent_end", "index_file", "index_header_0", "index_header_1", "index_header_2", "index_header_3",
    "index_header_4", "last_record", "store_timestamp", "append_waiting", "append_holder", "flush_waiting",
    "flush_holder", "append_looked", "flush_looked", "open_waiting", "open_holder", "open_looked",
    "broker_role", "in_sync_replicas", "slave_timeout", "slave_count", "replicated_end", "slowest_end",
    "replica_waiting", "replica_holder", "replica_looked", "growth_waiting", "growth_holder", "growth_looked",
)  # fmt: skip
_WORD = np.dtype("<i8")
_SYNCING_ALL = 2
_INDEX_HEADER = slice(WORDS.index("index_header_0"), WORDS.index("index_header_4") + 1)
_APPEND_FUTEX = slice(WORDS.index("append_waiting"), WORDS.index("append_holder") + 1)
_FLUSH_FUTEX = slice(WORDS.index("flush_waiting"), WORDS.index("flush_holder") + 1)
_APPEND_LOOKED = slice(WORDS.index("append_looked"), WORDS.index("append_looked") + 1)
_FLUSH_LOOKED = slice(WORDS.index("flush_looked"), WORDS.index("flush_looked") + 1)
_OPEN_FUTEX = slice(WORDS.index("open_waiting"), WORDS.index("open_holder") + 1)
_OPEN_LOOKED = slice(WORDS.index("open_looked"), WORDS.index("open_looked") + 1)
_REPLICA_FUTEX = slice(WORDS.index("replica_waiting"), WORDS.index("replica_holder") + 1)
_REPLICA_LOOKED = slice(WORDS.index("replica_looked"), WORDS.index("replica_looked") + 1)
_GROWTH_FUTEX = slice(WORDS.index("growth_waiting"), WORDS.index("growth_holder") + 1)
_GROWTH_LOOKED = slice(WORDS.index("growth_looked"), WORDS.index("growth_looked") + 1)
# Of those who wait while a first opener publishes the page; and what the store is, whoever opens it.
_OF_ROLE = ("broker_role", "in_sync_replicas", "slave_timeout")
_KEPT = ("open_waiting", "open_looked", *_OF_ROLE)


@functools.cache
def boot_id() -> bytes:
    """16 bytes that differ after every start of the kernel."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


class _Word:
    """An attribute that is one word of the page: one aligned load with acquire, or store with release."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._number = WORDS.index(name)

    def __get__(self, page: StatePage, owner: type | None = None) -> int:
        value = page._loads[self._number]
        native.acquire_fence()
        return value

    def __set__(self, page: StatePage, value: int) -> None:
        native.release_fence()
        page._words[self._number] = value


class StatePage:
    """One process's map of `<root>/pyrmq/state`. Attributes are the words of the table; reading one is one load."""

    appended_end = _Word()
    flushed_end = _Word()
    flushing = _Word()
    poison = _Word()
    intent_start = _Word()
    intent_end = _Word()
    index_file = _Word()
    last_record = _Word()
    store_timestamp = _Word()
    broker_role = _Word()
    in_sync_replicas = _Word()
    slave_timeout = _Word()
    slave_count = _Word()
    replicated_end = _Word()
    slowest_end = _Word()

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Map the page, creating it with zeros if `writable`. FileNotFoundError if it is missing and not writable."""
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fd = durable.open_nofollow(path, flags)
        try:
            if writable and os.fstat(fd).st_size < STATE_BYTES:
                durable.before("allocate", path)
                try:
                    os.posix_fallocate(fd, 0, STATE_BYTES)
                except OSError as error:
                    raise durable.translate(error, path) from error
            elif os.fstat(fd).st_size < STATE_BYTES:
                raise FileNotFoundError(str(path))
            self._map = map_file(fd, STATE_BYTES, writable=writable)
            status = os.fstat(fd)
            self._identity = (status.st_dev, status.st_ino)
            self._written_s = status.st_mtime
        finally:
            os.close(fd)
        self._words = np.frombuffer(self._map, _WORD, len(WORDS))
        self._loads = memoryview(self._map).cast("q")  # the same words; makes an int without a numpy scalar
        self._boot = np.frombuffer(boot_id(), _WORD)

    @property
    def map(self) -> mmap.mmap:
        """The page itself, for code that loads and stores its words as this class does."""
        return self._map

    def belongs_here(self) -> bool:
        """True if a first opener finished writing this page for this file: no copy, no half recovery, no damaged words.

        Its flushed end is then a lower bound of the bytes on disk, in any later boot, unless a broker wrote since.
        """
        words = self._words
        if words[0] != STATE_MAGIC:
            return False
        native.acquire_fence()
        if (int(words[3]), int(words[4])) != self._identity:
            return False
        return self._is_possible()

    def is_copied(self) -> bool:
        """True if a first opener wrote this page for another file, and this is a copy of it. Its words describe that
        other store, not how much of the log this copy has.
        """
        return self._words[0] == STATE_MAGIC and not self.belongs_here() and self._is_possible()

    def _is_possible(self) -> bool:
        """Whether the ends agree with each other. Believing one that rotted would take back acknowledged messages.

        Loaded in the reverse of the order in which they are stored: a writer at work does not look like rot.
        """
        flushed_end = self.flushed_end
        intent_end = self.intent_end
        intent_start = self.intent_start
        appended_end = self.appended_end
        return 0 <= flushed_end <= appended_end and (intent_end <= appended_end or intent_start == appended_end)

    def counts(self) -> bool:
        """True if `belongs_here`, in this boot: then every word is true as long as no broker wrote since."""
        return self.belongs_here() and bool((self._words[1:3] == self._boot).all())

    def names_this_boot(self) -> bool:
        """True if a process of this boot has published the page, also if another one has retracted it since."""
        return bool((self._words[1:3] == self._boot).all())

    def is_of_another_boot(self) -> bool:
        """True if `belongs_here` and the machine was restarted since the last writer, while no flush had failed or was
        running. The content of the files was then read from the disk.

        A container may have a boot id of its own while kernel and page cache live on. So the page must also be older
        than the kernel.
        """
        other = bool((self._words[1:3] != self._boot).any())
        is_older = self._written_s < real_time.file_time_ns() / 1e9 - time.clock_gettime(time.CLOCK_BOOTTIME)
        return other and is_older and self.belongs_here() and not (self.poison or self.flushing)

    @property
    def is_doubtful(self) -> bool:
        """True if a flush failed in this boot, or a process that called syncfs after a killed writer was itself killed:
        perhaps after a failure.

        Also true after a clean stop, when nothing is in doubt: the caller knows that case.
        """
        return bool((self._words[1:3] == self._boot).all()) and bool(self.poison or self.flushing == _SYNCING_ALL)

    def doubt(self) -> None:
        """Mark the page before a call of syncfs: `is_doubtful` is true until the caller clears `flushing`, even if it
        is killed.
        """
        self._words[1:3] = self._boot
        self.flushing = _SYNCING_ALL

    def keeps_role(self) -> bool:
        """True if the words of the role are those of this store, also after its last writer has left."""
        return (self._loads[3], self._loads[4]) == self._identity

    def retract(self) -> None:
        """Make the page invalid for every process: a first opener begins to recover, or the last closer leaves."""
        self._words[0] = 0

    def publish(self, appended_end: int, flushed_end: int, last_record: int, store_timestamp: int) -> None:
        """Write every word after the recovery of a first opener, the magic last.

        A word that keeps its value is not changed in between: a reader that outlived all writers may read it at that
        moment.
        """
        known = dict(zip(("boot_high", "boot_low"), self._boot.tolist(), strict=True))
        known |= dict(zip(("device", "inode"), self._identity, strict=True))
        known |= {"appended_end": appended_end, "flushed_end": flushed_end}
        known |= {"last_record": last_record, "store_timestamp": store_timestamp, "slowest_end": -1}
        if not self.keeps_role():  # a copy is served by nobody
            known |= dict.fromkeys(_OF_ROLE, 0)
        for number, name in enumerate(WORDS[1:], start=1):
            if name in known or name not in _KEPT:
                self._words[number] = known.get(name, 0)
        native.release_fence()
        self._words[0] = STATE_MAGIC

    def append_futex(self) -> Futex:
        """The futex of the append lock. One waiter at a time can continue."""
        return Futex(self._words[_APPEND_FUTEX], self._words[_APPEND_LOOKED], wake_all=False)

    def flush_futex(self) -> Futex:
        """The futex of the flush lock. One fsync serves many waiters."""
        return Futex(self._words[_FLUSH_FUTEX], self._words[_FLUSH_LOOKED], wake_all=True)

    def open_futex(self) -> Futex:
        """The futex of byte 0 of `lock`. A closer that held it exclusively wakes one waiter, the next first opener."""
        return Futex(self._words[_OPEN_FUTEX], self._words[_OPEN_LOOKED], wake_all=False)

    def replica_futex(self) -> Futex:
        """The futex of those who wait for slaves. One report of a slave serves many."""
        return Futex(self._words[_REPLICA_FUTEX], self._words[_REPLICA_LOOKED], wake_all=True)

    def growth_futex(self) -> Futex:
        """The futex of the server that sends to slaves."""
        return Futex(self._words[_GROWTH_FUTEX], self._words[_GROWTH_LOOKED], wake_all=True)

    @property
    def intent(self) -> tuple[int, int] | None:
        """[start, end) of an append that has not reached its commit point, or None."""
        end = self.intent_end
        return (self.intent_start, end) if end > self.appended_end else None

    def declare(self, start: int, end: int, index_file: int, index_header: bytes) -> None:
        """Record an intent (step A3). `intent_end` makes it count, so it is written last."""
        self.index_file = index_file
        native.release_fence()
        self._words[_INDEX_HEADER] = np.frombuffer(index_header, _WORD)
        self.intent_start = start
        self.intent_end = end

    @property
    def index_header(self) -> bytes:
        """The 40 header bytes that belong to `index_file`."""
        return self._words[_INDEX_HEADER].tobytes()
