"""Reads a checkpoint: the query, its batches, and the position of each source. Changes nothing.

    metadata           {"id": UUID of the query}
    offsets/<batch>    written when a batch is planned: JSON about the batch, then a line for each source: the end of
                       the batch in it, or - if the source had given nothing yet. v2: `name:` before it
    commits/<batch>    written when the sink has completed the batch
    state/             the state of a stateful query
    sources/           files of some sources; ours has none

A query that starts reads the last planned batch. If that batch is also the last committed one, the query continues
after it. Otherwise Spark runs the batch again, from the end of the batch before it, whatever the other commits say.
Sources: MicroBatchExecution.scala (populateStartOffsets), OffsetSeqLog.scala, CommitLog.scala, StreamMetadata.scala.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_rmq.checkpoint.log_file import read_lines, read_text
from pyspark_rmq.position.position import StreamPosition
from rmq_store import validate_topic
from rmq_store.arguments import local_path
from rmq_store.cli.plugin import durable
from rmq_store.errors import CorruptConfigError, UsageError

OFFSETS_VERSION_MAX = 2
COMMITS_VERSION_MAX = 3

NOTHING = "-"
"""OffsetSeqLog.SERIALIZED_VOID_OFFSET: the source had given nothing yet."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a query in a batch: line `number` of the batch's file; `name` only in v2.

    `text` is its offset as Spark stores it. `position` is the same parsed, for a source of this package; None for
    others.
    """

    number: int
    name: str | None
    text: str
    position: StreamPosition | None

    @property
    def key(self) -> int | str:
        """Identifies the source among the sources of the query, in all batches."""
        return self.number if self.name is None else self.name


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned batch. `about` is Spark's JSON about it: batchWatermarkMs, batchTimestampMs, conf."""

    number: int
    version: int
    about: dict[str, Any]
    sources: tuple[Source, ...]

    def position(self, key: int | str) -> StreamPosition | None:
        """The end of the batch in a source of this package; None if the batch has no position of such a source."""
        return next((source.position for source in self.sources if source.key == key), None)


@dataclass(frozen=True, slots=True)
class Standing:
    """Position of a source of this package for a query that starts now: it reads from `begin` on. `end` is the end of
    the batch that runs again; None if no batch does.
    """

    source: Source
    begin: StreamPosition
    end: StreamPosition | None


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a batch's commit file: nextBatchWatermarkMs; from v3 on, sinkMetadataMap."""

    version: int
    about: dict[str, Any]

    def sinks(self) -> list[str]:
        """The sinks that the file names, each with its provider; nothing before v3."""
        found = self.about.get("sinkMetadataMap")
        known = found.values() if isinstance(found, dict) else ()
        names = [f"{sink.get('sinkName')} ({sink.get('providerName')})" for sink in known if isinstance(sink, dict)]
        return [name.encode("utf-8", "backslashreplace").decode() for name in names]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it was read: the ascending numbers of its batches, and whether the query has state."""

    path: Path
    query_id: str
    planned: tuple[int, ...]
    committed: tuple[int, ...]
    has_state: bool

    @property
    def last(self) -> int | None:
        """The last planned batch."""
        return self.planned[-1] if self.planned else None

    @property
    def is_complete(self) -> bool:
        """True if the last planned batch is committed; if not, a query that starts runs it again."""
        return bool(self.planned) and self.committed[-1:] == self.planned[-1:]

    @property
    def done(self) -> int | None:
        """The batch after which a query that starts now continues; None: its starting options decide."""
        if self.last is None or self.is_complete:
            return self.last
        return self.last - 1 if self.last else None

    def batch(self, number: int) -> Batch:
        """Read one batch.

        Raises:
            UsageError: the batch does not exist: Spark keeps the last 100 (spark.sql.streaming.minBatchesToRetain).
            CorruptConfigError, NotAStoreError: Spark cannot have written the file.
        """
        path = self.path / "offsets" / str(number)
        try:
            version, lines = read_lines(path, OFFSETS_VERSION_MAX)
        except FileNotFoundError as error:
            kept = f"it has {span(self.planned)}" if self.planned else "none was planned"
            raise UsageError(f"{self.path}: there is no batch {number}: {kept}") from error
        if not lines:
            raise CorruptConfigError(str(path), 0, "ends after its first line: its writer was stopped")
        about = _object(path, lines[0]) if lines[0].strip() else {}
        return Batch(number, version, about, tuple(_sources(path, version, lines[1:])))

    def standings(self) -> list[Standing]:
        """The position of each source of this package; empty if the query has none.

        Raises:
            UsageError: no batch was planned, so the query begins where its options say. Or the batch before the one
                that will run again is gone, and Spark cannot start from it either.
            CorruptConfigError, NotAStoreError: as `batch`.
        """
        if self.last is None:
            raise UsageError(f"{self.path}: no batch was ever planned: the query begins where its options say")
        last = self.batch(self.last)
        before = self.batch(self.done) if self.done is not None else None
        found = []
        for source in last.sources:
            if source.position is None:
                continue
            # Queues that this batch saw first, all those of a first batch, or went back in: `began` in
            # pyspark_rmq.position.position.
            known = before.position(source.key) if before is not None else None
            begin = known or StreamPosition(source.position.store, {}, since=source.position.since)
            began = source.position.began_behind(known)
            after = {queue: fingerprint for queue, fingerprint in begin.after.items() if queue not in began}
            closed = {queue: offset for queue, offset in begin.closed.items() if queue not in began}
            begin = replace(begin, next={**begin.next, **began}, after=after, began={}, closed=closed)
            found.append(Standing(source, begin, None if self.is_complete else source.position))
        return found

    def commit(self, number: int) -> Commit | None:
        """Read the commit file of a batch; None if there is none. Raises CorruptConfigError and NotAStoreError."""
        path = self.path / "commits" / str(number)
        try:
            version, lines = read_lines(path, COMMITS_VERSION_MAX)
        except FileNotFoundError:
            return None
        if not lines:
            raise CorruptConfigError(str(path), 0, "ends after its first line: its writer was stopped")
        return Commit(version, _object(path, lines[0]))


def local_directory(location: str) -> Path:
    """The local directory that a location names; the location may be a file: URI.

    Raises:
        UsageError: the location is on another file system.
    """
    try:
        return local_path(location)
    except UsageError as error:
        system = location.partition(":")[0]
        raise UsageError(
            f"{location!r} is no local directory: copy the checkpoint from {system} to one, and the new one back"
        ) from error


def open_checkpoint(location: str) -> Checkpoint:
    """Read a checkpoint. A query may run on it meanwhile.

    Raises:
        UsageError: there is no checkpoint.
        CorruptConfigError: it has no query id.
        NotAStoreError: it contains a symbolic link.
    """
    path = local_directory(location)
    if not path.is_dir():
        raise UsageError(f"{location!r} is no directory")
    offsets, commits, state = (path / name for name in ("offsets", "commits", "state"))
    durable.refuse_links(offsets, commits, state)
    try:
        query_id = _object(path / "metadata", read_text(path / "metadata")).get("id")
    except FileNotFoundError as error:
        raise UsageError(f"{location!r} is no checkpoint of a streaming query: it has no file `metadata`") from error
    try:
        query_id = str(uuid.UUID(query_id))
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptConfigError(str(path / "metadata"), 0, f"{str(query_id)[:80]!r} is no query id") from error
    # Commits first: a query that goes on meanwhile shows a batch that is not committed yet, never the reverse.
    committed = _batch_numbers(commits)
    return Checkpoint(path, query_id, _batch_numbers(offsets), committed, state.is_dir() and any(state.iterdir()))


def span(batches: tuple[int, ...]) -> str:
    """Ascending numbers as text: `none`, `3`, `0 to 3`."""
    if not batches:
        return "none"
    return str(batches[0]) if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"


def _batch_numbers(directory: Path) -> tuple[int, ...]:
    # HDFSMetadataLog: what is called otherwise is somebody's temporary file.
    names = (entry.name for entry in directory.iterdir()) if directory.is_dir() else ()
    return tuple(sorted(int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]{0,17}", name, re.ASCII)))


def _object(path: Path, text: str) -> dict[str, Any]:
    found = _json(text)
    if not isinstance(found, dict):
        raise CorruptConfigError(str(path), 0, f"a JSON object is expected, not {text[:80]!r}")
    return found


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also integers of thousands of digits
        return None


def _sources(path: Path, version: int, lines: list[str]) -> Iterator[Source]:
    for number, line in enumerate(lines):
        name, colon, text = line.partition(":") if version > 1 else (None, ":", line)
        if not colon:
            raise CorruptConfigError(str(path), 0, f"line {number + 3} has no name of a source")
        yield Source(number, name, text, _position(path, text))


def _position(path: Path, text: str) -> StreamPosition | None:
    """The position of a source of ours; None of others, whose offsets are theirs to read."""
    found = _json(text)
    if not (isinstance(found, dict) and isinstance(found.get("version"), int) and {"store", "topics"} <= found.keys()):
        return None
    try:
        position = StreamPosition.from_json(found)
        for topic in {queue.topic for queue in position.next}:
            validate_topic(topic)
    except UsageError as error:
        raise CorruptConfigError(str(path), 0, str(error)) from error
    if not position.store.isprintable():
        raise CorruptConfigError(str(path), 0, f"{position.store!r} is no identity of a store")
    return position
