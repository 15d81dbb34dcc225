"""What writers were told, and whether a store has it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rmq_store import Store
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.verify import verify_store

from .writers import GROUP, LATER, TOPIC, TRIED, UNIT_ROWS


class Ledger:
    """The notes of all writers of a chain of masters. `answers` counts each status, by kind of writer; `lost` what was
    answered with 11 or 12 and is not there; `repeats` what is there more than once, as its sender has repeated it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.acknowledged: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._warned: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.last_unit = 0
        self.lost: set[str] = set()
        self.repeats: set[str] = set()

    def file(self, writer: str) -> Path:
        """Where a writer notes; its name begins with its kind."""
        return self._directory / writer

    def renew(self) -> None:
        """Read what is new."""
        for path in sorted(self._directory.iterdir()):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if line.endswith(b"\n"):
                        self._read[path] = self._read.get(path, 0) + len(line)
                        self._take(path.name, *line.decode().split())

    def note(self, status: int, what: str) -> None:
        """A send of the test itself."""
        self._take("test", str(status), what)

    def _take(self, writer: str, status: str, what: str) -> None:
        kind = "unit" if what.startswith("unit-") else writer.partition("-")[0]
        if kind == "unit":
            self.last_unit = max(self.last_unit, int(what.partition("-")[2]))
        if status == str(TRIED):
            return
        self.answers[f"{kind} {status}"] += 1
        self.lines[writer] += 1
        self._tries[what] += 1
        if status == "0":
            self.acknowledged.add(what)
            self.lines[f"{writer} acknowledged"] += 1
        elif status in ("11", "12"):
            self._warned.add(what)

    def check(self, root: Path, acknowledged: set[str]) -> None:
        """The store has each acknowledged message once, and whole units, and is sound. AssertionError: it is not so."""
        found = found_in(root)
        lost = acknowledged - found.keys()
        assert not lost, f"{root}: {len(lost)} acknowledged are lost: {sorted(lost)[:5]}"
        units = {what: count for what, count in found.items() if what.startswith("unit-")}
        odd = {what: count for what, count in units.items() if count != UNIT_ROWS}
        assert not odd, f"{root}: units of {UNIT_ROWS} rows, and there are {odd}"
        twice = {what for what, count in found.items() if count > 1} - units.keys()
        self.repeats |= twice
        unasked = {what for what in twice if self._tries[what] < found[what]}
        assert not unasked, f"{root}: more than once, and not sent so often: {sorted(unasked)[:5]}"
        report = verify_store(root)
        assert report.status == "clean", report.problems
        with Store.open(root, read_only=True) as store:
            for (topic, queue_id), offset in OffsetTable(root).committed(GROUP).items():
                there = store.queue_range(topic, queue_id).max_offset
                assert offset <= there, f"{topic}-{queue_id}: an offset of {offset}, and the queue ends at {there}"

    def promoted(self, root: Path) -> None:
        """The store of the next master: what is not there is lost."""
        self.lost |= self._warned - self.acknowledged - found_in(root).keys()


def found_in(root: Path) -> Counter[str]:
    """How often each message is there, by name."""
    found: Counter[str] = Counter()
    with Store.open(root, read_only=True) as store:
        for name, topic in store.topics().items():
            for queue_id in range(topic.write_queue_nums if name.startswith((TOPIC, LATER)) else 0):
                low, high = store.queue_range(name, queue_id)
                for batch in store.read(name, queue_id, low, high, columns=["body"]) if low < high else ():
                    found.update(body.split(b" ", 1)[0].decode() for body in batch.column("body").to_pylist())
    return found
