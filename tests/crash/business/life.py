"""One life: fresh databases and a fresh store, a crew that dies at its points, then quiet, people, and the judge."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import sqlalchemy as sa

from crash.business import judge, points
from crash.business.crew import Crew
from crash.business.setting import KEYS, ORDERS, QUEUES, STEPS, Group, Setting, Word, metadata, steps
from crash.part import Counters
from helpers import servers

# A life whose kills are not reached by then is over.
KILLS_IN_S = 120.0
# A life goes on behind its kills for its first dead letter: a message is dead some six seconds after it was sent.
_FIRST_DEAD_LETTER_IN_S = 30.0
# What has not come by then, with all that people can do, does not come.
QUIET_S = 120.0
_STILL_S = 1.5
_PEOPLE_MAX = 10
# Behind the last visit of people. A sender that a message kills needs some seconds for each of its tries.
_LAST_STILL_S = 15.0
_HOUR_MS = 3_600_000
_EVERY_KILLS = 3

# By the number of the life: how messages are consumed, and whether both sides have one database.
HOW = (("concurrently", "simple", True), ("arrow", "concurrently", False), ("simple", "simple", True))


def groups_of(number: int) -> tuple[tuple[Group, ...], bool]:
    """The groups of a life, and whether stubs and effects lie in one database."""
    how, outside, is_one_database = HOW[number % len(HOW)]
    return (
        Group("cg_stock", ORDERS, how),
        Group("cg_mail", ORDERS, outside, outside=True),
        Group("cg_ledger", STEPS, "orderly"),
    ), is_one_database


class Life:
    """`kind`: sqlite, postgresql or mariadb."""

    def __init__(self, kind: str, directory: Path, number: int, chance: random.Random) -> None:
        self._server: servers.DatabaseServer | None = (
            None if kind == "sqlite" else {"postgresql": servers.postgresql, "mariadb": servers.mariadb}[kind]()
        )
        self._directory = directory
        self._number = number
        self._chance = chance
        self._seen: Counter[str] = Counter()
        self._kit_clock_jumps = iter((600_000, 0, -600_000, 0) * 10)

    def run(self, planned: Sequence[str], tick: Callable[[int], None]) -> Counters:
        """Kill at these points; compare what is left."""
        counters = Counters(cycles=len(planned))
        with ExitStack() as ends:
            setting = self._setting(ends)
            stubs = sa.create_engine(setting.stubs_url, poolclass=sa.NullPool)
            other = stubs if setting.is_one_database else sa.create_engine(setting.effects_url, poolclass=sa.NullPool)
            self._prepare(setting, stubs, other)
            crew = Crew(setting, self._chance, self._seen)
            ends.callback(crew.bury)
            crew.arm(planned)
            crew.start()
            self._work(setting, crew, tick)
            self._await_dead_letter(setting, crew)
            setting.words[Word.SENDERS_END] = 1
            found = self._come_to_rest(setting, crew, stubs, other)
            crew.end()
            for failure in crew.failures:
                counters.broken += 1
                counters.note(failure)
            if not crew.failures:
                found = judge.look(setting, stubs, other)
            judge.judge(setting, found, counters)
            self._seen["kills"] += crew.kills
            tick(max(0, len(planned) - crew.kills))
        counters.seen.update(self._seen)
        return counters

    # -- before ------------------------------------------------------------------------------------------------------

    def _setting(self, ends: ExitStack) -> Setting:
        groups, is_one_database = groups_of(self._number)
        self._directory.mkdir()
        if self._server is None:
            urls = [f"sqlite:///{self._directory}/{name}.sqlite" for name in ("stubs", "effects")]
        else:
            urls = [self._server.url(ends.enter_context(self._server.new_database())) for _ in range(2)]
        servers.redis().start()
        servers.redis().flush()
        return Setting(self._directory, urls[0], urls[0 if is_one_database else 1], servers.redis().url(), groups)

    def _prepare(self, setting: Setting, stubs: sa.Engine, other: sa.Engine) -> None:
        from rmq_store import Store, StoreConfig

        for engine in {stubs, other}:
            setting.tables.metadata.create_all(engine)
            metadata.create_all(engine)
        with stubs.begin() as connection:
            connection.execute(steps.insert(), [{"key_name": key, "step": 0} for key in KEYS])
        config = StoreConfig(
            mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_hash_slot_num=500,
            max_index_num=2_000, disk_space_warning_level_ratio=100,
        )  # fmt: skip
        with Store.open(setting.store_path, create=True, config=config, clock=setting.store_clock) as store:
            for topic in (ORDERS, STEPS):
                store.create_topic(topic, queue_count=QUEUES)

    # -- while they die ----------------------------------------------------------------------------------------------

    def _work(self, setting: Setting, crew: Crew, tick: Callable[[int], None]) -> None:
        deadline_s = time.monotonic() + KILLS_IN_S
        calamities = self._calamities(setting)
        until = _EVERY_KILLS
        while crew.is_armed and not crew.failures and time.monotonic() < deadline_s:
            kills = crew.look()
            if kills:
                tick(kills)
            if crew.kills >= until and calamities:
                until += _EVERY_KILLS
                name, call = calamities.pop(0)
                self._seen[name] += 1
                call()

    def _await_dead_letter(self, setting: Setting, crew: Crew) -> None:
        """Let senders and consumers go on until a dead letter is there, which people can redrive."""
        deadline_s = time.monotonic() + _FIRST_DEAD_LETTER_IN_S
        while not setting.has_dead_letter() and not crew.failures and time.monotonic() < deadline_s:
            crew.look()
            time.sleep(0.05)

    def _calamities(self, setting: Setting) -> list[tuple[str, Callable[[], object]]]:
        def move_clock() -> None:
            setting.words[Word.CLOCK_MS] = next(self._kit_clock_jumps)

        redis = servers.redis()
        found: list[tuple[str, Callable[[], object]]] = [
            ("Redis flushed", redis.flush),
            ("Redis restarted", redis.restart),
            *[("clock jumped", move_clock)] * 4,
        ]
        if self._server is not None:
            found += [("database restarted", self._server.restart)] * 2
        self._chance.shuffle(found)
        return found

    # -- afterwards --------------------------------------------------------------------------------------------------

    def _come_to_rest(self, setting: Setting, crew: Crew, stubs: sa.Engine, other: sa.Engine) -> judge.Found:
        """Let what is under way arrive; where nothing goes on any more, time passes and people do what they can."""
        setting.words[Word.CLOCK_MS] = 0
        setting.words[Word.POISON_IS_CURED] = 1
        if self._server is not None:
            self._server.start()
        begun_s = still_s = time.monotonic()
        people = 0
        before: tuple[int, ...] | None = None
        while True:
            crew.look()
            found = judge.look(setting, stubs, other)
            open_now = (len(found.missing()), len(found.unconfirmed()), len(setting.notes("kills by a message")))
            now_s = time.monotonic()
            if (open_now[:2] == (0, 0) and not found.untold_killers()) or crew.failures or now_s - begun_s > QUIET_S:
                return found
            if open_now != before:
                before, still_s = open_now, now_s
            elif now_s - still_s > _STILL_S:
                if people == _PEOPLE_MAX:
                    if now_s - still_s > _LAST_STILL_S:
                        return found
                    time.sleep(0.1)
                    continue
                people += 1
                self._people(setting, stubs, other, found)
                before, still_s = None, time.monotonic()
            time.sleep(0.1)

    def _people(self, setting: Setting, stubs: sa.Engine, other: sa.Engine, found: judge.Found) -> None:
        from rmq_store.reliable import Inboxes
        from rmq_store.reliable.operator import manual_work

        self._seen["rounds of people"] += 1
        setting.words[Word.CLOCK_MS] += _HOUR_MS
        for group in setting.groups:
            self._seen["redriven"] += _redrive(setting, group.name)
        inboxes = Inboxes(stubs, other=other)
        listed = {message_id for message_id, _, reason in found.manual if reason not in ("in_doubt", "no_id")}
        for message_id in sorted(listed | found.manual_stubs):
            row = found.orders.get(message_id)
            if row is not None and not row.kills and found.status.get(message_id) == "unconfirmed":
                outcome = manual_work.retry(inboxes, setting.tables, message_id, setting.clock()())
                self._seen["retried by people"] += outcome is manual_work.ManualResult.CHANGED


def _redrive(setting: Setting, group: str) -> int:
    """Redrive all dead letters of a group, in a process of its own: a store is not forked. Returns how many."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            os.write(write, str(_redrive_here(setting, group)).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    if os.waitpid(pid, 0)[1] or not answer:
        raise RuntimeError(f"the dead letters of {group} were not redriven")
    return int(answer)


def _redrive_here(setting: Setting, group: str) -> int:
    import pyarrow as pa

    from rmq_store import Store
    from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted

    moved = 0
    with Store.open(setting.store_path, clock=setting.store_clock) as store:
        if f"%DLQ%{group}" not in store.topics():
            return 0
        for queue_ids, offsets in DeadLetterRows(store, group, Wanted()).places():
            rows = pa.RecordBatch.from_pydict({"queueId": pa.array(queue_ids), "queueOffset": pa.array(offsets)})
            result = store.dead_letters.redrive(group, rows)
            moved += result.num_rows - result.column("newQueueOffset").null_count
    return moved


def points_of(seed: int, count: int) -> list[str]:
    """`count` points: all in turn, in an order of the seed."""
    chance = random.Random(f"{seed}/points")
    found: list[str] = []
    while len(found) < count:
        turn = list(points.ALL)
        chance.shuffle(turn)
        found += turn
    return found[:count]
