"""All kinds of clients at work on one topic while something happens to its cluster, and what became of its messages.

    scene = Scene(cluster, directory, "Weather-1", SPARK)
    scene.start()
    outcome = scene.meet(event)
    scene.close()

Messages are told apart by their bodies. At the end RocketMQ's own client reads what the brokers hold.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.kills.session import Session, members
from helpers.cluster.weather.events import Event
from helpers.cluster.weather.members import (
    QUEUES,
    Client,
    Member,
    Mirroring,
    Polling,
    Popping,
    Producing,
    Pushed,
    Relaying,
    Sender,
)
from helpers.cluster.witness import Witness
from helpers.kafka_server import KafkaServer

SPARK: Final = "helpers.cluster.weather.driver"
WITHOUT_SPARK: Final = "helpers.cluster.weather.without_spark"
START_S: Final = 300.0
CATCH_UP_S: Final = 210.0
CALM_S: Final = 10.0
"""Before the event, and behind it."""
RESTART_AFTER_S: Final = 10.0
SENT_S: Final = 3.0
"""Until the last request of a sender has its answer, and the message is in its queue."""
STALL_MS: Final = 1000
MEETS_S: Final = 3.0
"""A trigger that begins so soon behind the event meets it."""
POLL_S: Final = 1.0
SHARES: Final = (0.5, 0.99, 1.0)
"""Of the ages of rows."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of the streams use, all together."""

    processes: int
    threads: int
    descriptors: int
    resident_mb: int


@dataclass(slots=True)
class Outcome:
    """What an event led to. `ended`: queries that ended by themselves, with their errors. `lost`, `more`: by client,
    how many messages it never got, and how many it got too often; of `copy`: rows of the sink that are not stored, and
    that are stored twice; of `relay`: promised messages that no broker has, and those that are stored again.
    `unstored`: acknowledged messages that no broker has, and how many of them `read` had got (`read_unstored`).
    `ages_ms`: of rows of living brokers in `read`: (median, 99th percentile, maximum) before and during the event, and
    of those that were stored behind `held_s`, when the plan that met it and the batch in flight were done. `aged`: of
    how many rows. `stalls`: plans of more than a second, and the longest plan of all, in ms. `relayed_s`: how long
    after the end the relay had sent everything. `caught_up_s`: by client, how long after the end it had everything.
    """

    event: str
    ended: list[str] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)
    unstored: int = 0
    read_unstored: int = 0
    messages: int = 0
    ages_ms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    aged: dict[str, int] = field(default_factory=dict)
    held_s: float = 0.0
    stalls: dict[str, tuple[int, int]] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    stop_s: float = 0.0
    relayed_s: float = 0.0
    caught_up_s: dict[str, float] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """As JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")


class Scene:
    """The clients of one topic, at work from `start` to `close`. `kafka`: the target of mirrors; None: there are none.
    `options` go to the driver.
    """

    def __init__(
        self, cluster: RocketmqCluster, directory: Path, name: str, streams: str, kafka: KafkaServer | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._directory = directory / name
        self._directory.mkdir(parents=True)
        self._name = name
        self.orders, self.copies = f"{name}-orders", f"{name}-copies"
        self._streams = streams
        self._kafka = kafka
        self._options = options
        self._clients: list[Client] = []
        self._more_before = Counter[str]()
        self._session: Session | None = None

    # -- beginning and end -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let all clients begin, and wait until each has got something."""
        has_slaves = any(broker_id for _, broker_id in self._cluster.brokers)
        for topic in (self.orders, self.copies):
            self._cluster.create_topic(topic, QUEUES, on_slaves=has_slaves)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        cluster = self._cluster
        given = {
            "name_server": cluster.name_server, "orders": self.orders, "copies": self.copies,
            "read": f"{self._name}-read", "handle": f"{self._name}-handle", **self._options,
        }  # fmt: skip
        self._session = Session(json.dumps(given), self._directory, self._streams)
        self._senders = [Sender(cluster, self.orders, name) for name in cluster.broker_names]
        self._producer = Producing(cluster, self.orders)
        self._relay = Relaying(cluster, self.orders, self._directory)
        kinds = [Pushed, Polling, *([] if cluster.version.startswith("4.") else [Popping])]
        self._members: list[Member] = [
            kind(cluster, f"{self._name}-{number}", self.orders) for number, kind in enumerate(kinds)
        ]
        if self._kafka is not None:
            self._members.append(Mirroring(cluster, f"{self._name}-mirror", self.orders, self._kafka, self._directory))
        for client in (*self._members, *self._senders, self._producer, self._relay):
            client.start()
            self._clients.append(client)
        self._await(lambda: min(self._counts().values()) > 20, START_S, self._counts)

    def _counts(self) -> dict[str, int]:
        """How much each client has got."""
        read = Counter(name for name, *_ in self._read_rows())
        return {
            **{f"read of {name}": read[name] for name in self._cluster.broker_names},
            **({"handle": len(self._handled())} if self._streams == SPARK else {}),
            "copy": self._stored(self.copies),
            **{member.name: member.got.total() for member in self._members},
        }  # fmt: skip

    def close(self) -> None:
        """End all clients."""
        while self._clients:
            self._clients.pop().end()
        if self._session is not None:
            self._session.kill()

    # -- the event ---------------------------------------------------------------------------------------------------

    def meet(self, event: Event) -> Outcome:
        """Let something happen, wait until everybody has caught up, and count. Other events may follow."""
        outcome = Outcome(event.name)
        self._let_send(True)
        time.sleep(CALM_S)
        outcome.usage["before"] = self.usage()
        for client in self._clients:
            client.errors.clear()
        began_s = time.time()
        restart = threading.Timer(RESTART_AFTER_S, (self._directory / "restart").touch)
        if event.restarts:
            restart.start()
        event.happen(self._cluster)
        time.sleep(CALM_S)
        over_s = time.time()
        outcome.usage["after"] = self.usage()
        self._let_send(False)
        time.sleep(SENT_S)
        self._await(self._relay.has_sent_all, CATCH_UP_S, None)
        outcome.relayed_s = round(time.time() - over_s, 1)
        everything = self._dump(self.orders)
        self._await(lambda: self._caught_up(everything, over_s, outcome), CATCH_UP_S, None)
        (self._directory / "report").touch()
        self._await(lambda: not (self._directory / "report").exists(), START_S, None)
        self._count(outcome, everything, began_s)
        self._measure(outcome, event, began_s, over_s)
        outcome.errors = {
            client.name: [f"{at - began_s:.1f} s: {error}" for at, error in client.errors]
            for client in (*self._members, self._relay)
        }
        return outcome

    def _let_send(self, sends: bool) -> None:
        for sender in self._sources():
            sender.is_paused = not sends

    def _sources(self) -> list[Sender | Producing | Relaying]:
        return [*self._senders, self._producer, self._relay]

    def _caught_up(self, everything: Counter[str], over_s: float, outcome: Outcome) -> bool:
        wanted = everything.keys()
        has_all = {
            "read": lambda: wanted <= {row[3] for row in self._read_rows()},
            "copy": lambda: self._stored(self.copies) >= everything.total(),
            **{member.name: functools.partial(_has_all, member, wanted) for member in self._members},
        }
        if self._streams == SPARK:
            has_all["handle"] = lambda: wanted <= {body for tries, body in self._handled()}
        for name, is_done in has_all.items():
            if name not in outcome.caught_up_s and is_done():
                outcome.caught_up_s[name] = round(time.time() - over_s, 1)
        return len(outcome.caught_up_s) == len(has_all)

    # -- counting ----------------------------------------------------------------------------------------------------

    def _count(self, outcome: Outcome, everything: Counter[str], began_s: float) -> None:
        outcome.messages = everything.total()
        unstored = self._acknowledged() - everything.keys()
        outcome.unstored = len(unstored)
        outcome.read_unstored = len(unstored & {row[3] for row in self._read_rows()})
        outcome.lost, more = self._more(everything)
        outcome.more = {name: count - self._more_before[name] for name, count in more.items()}
        self._more_before = Counter(more)
        outcome.ended = [f"{one['query']}: {one['error']}" for one in self._notes("ended") if one["at"] > began_s]

    def _acknowledged(self) -> set[str]:
        return {body for one in self._sources() for body in one.acknowledged}

    def _more(self, everything: Counter[str]) -> tuple[dict[str, int], dict[str, int]]:
        """By client, how many messages it never got, and how many it got too often."""
        # Those that were there, were copied, and are not there any more are no copies of nothing.
        expected = everything | Counter(self._acknowledged() - everything.keys())
        found = {
            "read": Counter(row[3] for row in self._read_rows()),
            "copy": self._dump(self.copies),
            **{member.name: member.got for member in self._members},
        }
        if self._streams == SPARK:
            found["handle"] = Counter(body for tries, body in self._handled() if tries == 0)
        lost = {name: (everything - got).total() for name, got in found.items()}
        more = {name: (got - expected).total() for name, got in found.items()}
        promised = Counter(self._relay.acknowledged)
        relayed = Counter({body: everything[body] for body in promised})
        lost["relay"], more["relay"] = (promised - relayed).total(), (relayed - promised).total()
        return lost, more

    def _measure(self, outcome: Outcome, event: Event, began_s: float, over_s: float) -> None:
        batches = [(int(file.name), json.loads(file.read_text())) for file in (self._directory / "read").glob("[0-9]*")]
        met_s = self._met_s(batches, began_s)
        ages: dict[str, list[int]] = {"before": [], "during": [], "behind what met it": []}
        for _, batch in batches:
            if not began_s - CALM_S < batch["at"] < over_s:
                continue
            stored_ms = [row[4] for row in batch["rows"] if row[0] not in event.hits]
            aged = [(at_ms, round(batch["at"] * 1000) - at_ms) for at_ms in stored_ms]
            ages["before" if batch["at"] < began_s else "during"] += [age_ms for _, age_ms in aged]
            ages["behind what met it"] += [age_ms for at_ms, age_ms in aged if at_ms >= met_s * 1000]
        outcome.ages_ms = {when: tuple(quantile(of, share) for share in SHARES) for when, of in ages.items()}
        outcome.aged = {when: len(of) for when, of in ages.items()}
        outcome.held_s = round(met_s - began_s, 1)
        plans: dict[str, list[int]] = {}
        for one in self._notes("progress"):
            at_s = datetime.fromisoformat(one["progress"]["timestamp"]).timestamp()
            if at_s < began_s:
                continue
            durations = one["progress"]["durationMs"]
            plans.setdefault(one["query"], []).append(
                durations.get("latestOffset", 0) + durations.get("queryPlanning", 0) + durations.get("commitOffsets", 0)
            )
        outcome.stalls = {name: (sum(ms > STALL_MS for ms in of), max(of)) for name, of in plans.items()}
        stops = (one["seconds"] for one in self._notes("stopped") if one["at"] > began_s)
        outcome.stop_s = round(max(stops, default=0.0), 1)

    def _met_s(self, batches: Iterable[tuple[int, Any]], began_s: float) -> float:
        """When the last batch was done whose trigger began before the event, or met it."""
        begun_s = {
            one["progress"]["batchId"]: datetime.fromisoformat(one["progress"]["timestamp"]).timestamp()
            for one in self._notes("progress")
            if one["query"] == "read"
        }
        met = (
            batch["at"]
            for number, batch in batches
            if batch["at"] > began_s and begun_s.get(number, batch["at"]) < began_s + MEETS_S
        )
        return max(met, default=began_s + MEETS_S)

    def usage(self) -> Usage:
        """Of the driver, its JVM and its Python processes."""
        assert self._session is not None
        pids = members(self._session.pid)
        threads = descriptors = pages = 0
        for pid in pids:
            process = Path(f"/proc/{pid}")
            try:
                threads += len(list((process / "task").iterdir()))
                descriptors += len(list((process / "fd").iterdir()))
                pages += int((process / "statm").read_text().split()[1])
            except OSError:
                continue  # it has ended
        return Usage(len(pids), threads, descriptors, pages * 4096 >> 20)

    def _dump(self, topic: str) -> Counter[str]:
        """The bodies of all messages of a topic, read by Java's client."""
        count = self._stored(topic)
        with Witness(self._cluster) as java:
            group = f"{self._name}-{topic}-{time.time_ns()}"
            found = java.ask("lite", group=group, topic=topic, count=count, timeoutMs=180_000)
        assert len(found) >= count, f"Java has got {len(found)} of {count} messages"
        return Counter(one["body"] for one in found)

    def _stored(self, topic: str) -> int:
        count = 0
        for name in self._cluster.broker_names:
            with self._cluster.connect(name) as broker:
                count += sum(requests.max_offset(broker, topic, queue_id) for queue_id in range(QUEUES))
        return count

    def _read_rows(self) -> Iterable[list[Any]]:
        for file in (self._directory / "read").glob("[0-9]*"):
            yield from json.loads(file.read_text())["rows"]

    def _handled(self) -> list[tuple[int, str]]:
        file = self._directory / "handled"
        if not file.exists():
            return []
        lines = file.read_text().splitlines(keepends=True)
        pairs = [line.rstrip().split(" ", 1) for line in lines if line.endswith("\n")]
        return [(int(tries), body) for tries, body in pairs]

    def _notes(self, file: str) -> list[dict[str, Any]]:
        path = self._directory / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _await(self, fulfilled: Callable[[], bool], patience_s: float, complaint: Callable[[], object] | None) -> None:
        """Without a complaint it is counted later what has not come."""
        assert self._session is not None
        deadline_s = time.monotonic() + patience_s
        while not fulfilled():
            assert self._session.runs(), f"the driver has ended: {self.log()}"
            if time.monotonic() > deadline_s:
                assert complaint is None, f"after {patience_s:.0f} s: {complaint()}. {self.log()}"
                return
            time.sleep(POLL_S)

    def log(self) -> str:
        """The end of what the driver wrote."""
        return "\n".join((self._directory / "log").read_text(errors="replace").splitlines()[-60:])


def _has_all(member: Member, wanted: Collection[str]) -> bool:
    return set(wanted) <= member.got.keys()


def quantile(values: list[int], share: float) -> int:
    """0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0
