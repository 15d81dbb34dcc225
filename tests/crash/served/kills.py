"""Part 30: the server of a store is killed at each point of a request, for each kind of request that changes the store.

Some requests are sent at once. The server dies at a point of one of them, another one is started over the same
directory, and the client repeats the requests that were not answered. An answered request has its effect; a repeated
one has it at most once more, and exactly once if it is an end of a transaction, an offset or an acknowledgement.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final
from unittest import mock

from crash.dying import PATIENCE_S, Child, quiet
from crash.operations import Saved
from crash.oracle import ACK, tell, verify
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.served import points
from crash.served.works import LATER_MS, REQUESTS, WORKS, Found, Prepared, Work, prepare
from crash.traffic import tiny_config
from helpers.cluster.asking import Connection
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand

PORT: Final = 0
# Operations on files and mapped words. The commit of an offset makes few of them, the first commit of a transaction
# into a topic makes many. The kill comes at the end of a call that makes fewer.
OPERATIONS: Final = (8, 24, 64)
MORE_STORING: Final = 4
SOONEST: Final = (*[("a commit", points.VISIBLE)] * 2, *[("an offset", points.ANSWERED)] * 2)
FLUSHES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")


def run(trial: Trial) -> Counters:
    """One kill per cycle."""
    quiet()
    counters = Counters()
    lives = [Life(trial.directory / flush, flush) for flush in FLUSHES]
    chance = random.Random(trial.seed)
    turn: list[tuple[Work, str]] = []
    for cycle in range(trial.cycles):
        if not turn:
            turn = in_turn(chance)
        work, point = turn.pop()
        found = lives[cycle % len(lives)].die(work, point, random.Random(f"{trial.seed}/{cycle}"))
        found.first = found.first and f"cycle {cycle}, {work.name}, {point}: {found.first}"
        counters.add(found)
        trial.tick(1)
    return counters


def in_turn(chance: random.Random) -> list[tuple[Work, str]]:
    """To be taken from its end: the kills that miss a protection soonest; then each kind of request at each point once;
    then some more inside of the store.
    """
    by_name = {work.name: work for work in WORKS}
    first = [(by_name[name], point) for name, point in SOONEST]
    each = list(product(WORKS, points.POINTS))
    more = list(product(WORKS, [points.STORING] * MORE_STORING))
    chance.shuffle(each)
    chance.shuffle(more)
    return more + each + first


class Life:
    """One prepared store, brought back before each kill."""

    def __init__(self, directory: Path, flush_disk_type: str) -> None:
        import pyarrow as pa

        from rmq_store import Store
        from rmq_store.server.broker_server import BrokerServer  # noqa: F401 - here, and not in each server

        directory.mkdir()
        self.root = directory / "store"
        self._copy = directory / "copy"
        self._notes = directory / "error"
        self._operation = directory / "operation"
        pa.array([b""])  # loads pandas
        with Store.open(self.root, create=True, config=tiny_config(flush_disk_type=flush_disk_type)) as store:
            self._prepared: Prepared = prepare(store)
        self._saved = Saved(self.root)

    def die(self, work: Work, point: str, chance: random.Random) -> Counters:
        """Kill a server at a point of one of the requests, let the client repeat them, and look."""
        found = Counters(cycles=1)
        self._saved.restore()
        self._operation.unlink(missing_ok=True)
        hit = chance.randrange(REQUESTS)
        operation, in_pool = chance.randrange(chance.choice(OPERATIONS)), chance.random() < 0.5
        armed = points.Armed(point, hit + 1, operation, self.root, self._operation, in_pool=in_pool)
        try:
            answered = self._serve_until_killed(work, armed, found)
            found.seen[f"at {work.name}: {point}"] += 1
            if self._operation.exists():
                found.seen[f"at {work.name}: {self._operation.read_text(encoding='utf-8')}"] += 1
            found.acknowledged = len(answered)
            before = self._look_at_copy(work)
            self._judge(before, answered, hit, point, found)
            repeated = set(range(REQUESTS)) - (set() if work.again else answered)
            self._serve_again(work, repeated, chance, found)
            unsure = set(range(REQUESTS)) - answered - ({hit} if point != points.STORING else set())
            self._judge_repeated(work, before, answered, unsure, self._look(work, self.root), found)
            verify(self.root, found)
        except Exception as error:
            found.broken += 1
            found.note(f"{type(error).__name__}: {error}")
        return found

    def _serve_until_killed(self, work: Work, armed: points.Armed, found: Counters) -> set[int]:
        """Send all requests, and return which of them were answered with success before the server died."""
        answered = set()
        with self._served(armed, found) as (server, address):
            with Connection(address) as client:
                opaques: list[int] = []
                with contextlib.suppress(ConnectionError):
                    opaques.extend(client.send(*work.request(self._prepared, number)) for number in range(REQUESTS))
                for number, opaque in enumerate(opaques):
                    with contextlib.suppress(ConnectionError):
                        self._expect_success(client.answer(opaque), found)
                        answered.add(number)
            if not _has_died(server) or server.error:
                found.broken += 1
                found.note(server.error or "the point was not reached")
            server.kill()
        return answered

    def _serve_again(self, work: Work, repeated: Iterable[int], chance: random.Random, found: Counters) -> None:
        """Let the client repeat requests, and end the server: in order, or by another kill."""
        with self._served(None, found) as (server, address), Connection(address) as client:
            for number in repeated:
                answer = client.ask(*work.request(self._prepared, number))
                if not (work.once and answer.code == ResponseCode.NO_MESSAGE):  # its receipt handle is used up
                    self._expect_success(answer, found)
            if chance.random() < 0.5:
                server.signal(signal.SIGTERM)
                ended = server.wait()
            else:
                ended = server.kill()
            if ended not in (0, -signal.SIGKILL):
                found.broken += 1
                found.note(server.error)

    def _expect_success(self, answer: RemotingCommand, found: Counters) -> None:
        if answer.code:
            found.broken += 1
            found.note(f"an answer: {answer}")

    @contextlib.contextmanager
    def _served(self, armed: points.Armed | None, found: Counters) -> Iterator[tuple[Child, str]]:
        server = Child(partial(_serve, self.root, armed), self._notes)
        try:
            if not server.told.wait(lambda told: PORT in told.acknowledged, PATIENCE_S):
                raise RuntimeError(f"no server: {server.error}")
            yield server, f"127.0.0.1:{server.told.acknowledged[PORT]}"
        except BaseException:
            with contextlib.suppress(ProcessLookupError, ChildProcessError, OSError):
                server.kill()
            raise

    # -- what must be there -------------------------------------------------------------------------------------------

    def _look_at_copy(self, work: Work) -> Found:
        """What the dead server has left, without a change to it."""
        shutil.copytree(self.root, self._copy)
        try:
            return self._look(work, self._copy)
        finally:
            shutil.rmtree(self._copy)

    def _look(self, work: Work, root: Path) -> Found:
        from rmq_store import Store

        later_ms = time.time_ns() // 1_000_000 + LATER_MS
        with Store.open(root, clock=lambda: later_ms) as store:
            return work.look(store)

    def _judge(self, before: Found, answered: set[int], hit: int, point: str, found: Counters) -> None:
        self._note_wrong(before.wrong, found)
        for number, effects in enumerate(before.effects):
            if number in answered and not effects:
                found.lost += 1
                found.note(f"request {number} was answered, and has no effect")
            if effects > 1:
                found.duplicated += 1
                found.note(f"request {number} has {effects} effects before it was repeated")
        if point != points.STORING and before.effects[hit] != (point not in points.NOT_STORED):
            found.broken += 1
            found.note(f"the request that was hit has {before.effects[hit]} effects")
        if (point == points.ANSWERED) != (hit in answered):
            found.broken += 1
            found.note(f"the request that was hit {'was' if hit in answered else 'was not'} answered")

    def _judge_repeated(
        self, work: Work, before: Found, answered: set[int], unsure: set[int], after: Found, found: Counters
    ) -> None:
        """`unsure`: the server may have died while one of its threads was writing their records. The recovery of the
        copy finds such a record in the log and keeps it; that of the directory itself undoes it. So the copy is no
        witness for them.
        """
        self._note_wrong(after.wrong, found)
        for number, (first, effects) in enumerate(zip(before.effects, after.effects, strict=True)):
            least = most = 1 if work.once or number in answered else first + 1
            if number in unsure and not work.once:
                least, most = 1, 2
            if effects < least:
                found.lost += 1
            found.duplicated += max(effects - most, 0)
            if not least <= effects <= most:
                found.note(f"request {number} has {effects} effects instead of {least} to {most}")

    def _note_wrong(self, wrong: list[str], found: Counters) -> None:
        if wrong:
            found.broken += 1
            found.note(wrong[0])


def _has_died(server: Child) -> bool:
    """Wait until it has."""
    end_s = time.monotonic() + PATIENCE_S
    while os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.001)
    return True


def _serve(root: Path, armed: points.Armed | None, pipe: int) -> None:
    """The server, until SIGTERM."""
    from rmq_store.server import services
    from rmq_store.server.broker_server import BrokerServer

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # No request is given up because this machine has other work.
    patient = {name: (*figures[:2], 1000 * PATIENCE_S) for name, figures in services._FIGURES.items()}
    with (
        mock.patch.object(services, "_FIGURES", patient),
        armed.installed() if armed else nullcontext(),
        BrokerServer(root) as server,
    ):
        tell(pipe, ACK, PORT, int(server.address.rpartition(":")[2]))
        signal.sigwait({signal.SIGTERM})


# -- teeth ------------------------------------------------------------------------------------------------------------


@protection("answers_last", "a request is answered when the store has carried it out, and not before")
def _without_answers_last() -> Iterator[None]:
    from rmq_store.server.requests.dispatcher import Dispatcher

    run, run_together = Dispatcher.run, Dispatcher._is_answered

    def answer_first(dispatcher: Dispatcher, processor: Any, request: Any) -> None:
        request.reply(request.answer())
        time.sleep(0.02)  # until it is written
        run(dispatcher, processor, request)

    def answer_all_first(dispatcher: Dispatcher, processor: Any, requests: Any) -> bool:
        for request in requests:
            request.reply(request.answer())
        time.sleep(0.02)
        return run_together(dispatcher, processor, requests)

    with (
        mock.patch.object(Dispatcher, "run", answer_first),
        mock.patch.object(Dispatcher, "_is_answered", answer_all_first),
    ):
        yield


@protection("offsets_at_once", "an offset whose client waits is in the store when it is answered")
def _without_offsets_at_once() -> Iterator[None]:
    from rmq_store.protocol.wire.headers import UpdateConsumerOffsetRequestHeader
    from rmq_store.server.processors.committed_offsets import CommittedOffsets

    def gather(offsets: CommittedOffsets, request: Any) -> object:
        header = request.header(UpdateConsumerOffsetRequestHeader)
        offsets.commit_later(header.consumer_group, (header.topic, header.queue_id), header.commit_offset)
        return request.answer()

    with mock.patch.object(CommittedOffsets, "update", gather):
        yield


@protection("one_unit", "the message of a transaction and the end of its half message are one unit")
def _without_one_unit() -> Iterator[None]:
    from rmq_store.broker.rules import purposes
    from rmq_store.broker.write.writer import Writer
    from rmq_store.log.core.units import UnitRecord

    append_unit = Writer.append_unit

    def append_apart(writer: Writer, batches: Any, unit: UnitRecord, *, expect: int | None) -> object:
        if unit.purpose == purposes.TRANSACTION and len(batches) == 2:
            message = replace(unit, key=f"apart-{unit.value}", row_count=1)
            append_unit(writer, batches[:1], message, expect=None)
            return append_unit(writer, batches[1:], replace(unit, row_count=1), expect=expect)
        return append_unit(writer, batches, unit, expect=expect)

    with mock.patch.object(Writer, "append_unit", append_apart):
        yield


PARTS = (
    Part(
        "served", "30", "a server killed at each point of a request", "kills",
        harness=len(SOONEST) + len(WORKS) * len(points.POINTS), crash=1000, soak=5000, chunk=500, run=run,
        protections=("answers_last", "offsets_at_once", "one_unit"), bites_within=32, by_cycle=True,
    ),
)  # fmt: skip
