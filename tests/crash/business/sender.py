"""The sending processes: business transactions with their messages, and relays."""

from __future__ import annotations

import random
import threading
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from crash.business import points
from crash.business.network import FAILS, KILLS, POISON, UnreliableCluster
from crash.business.setting import (
    FIRST_RETRY_MS,
    FIRST_WAIT_MS,
    KEYS,
    LEASE_MS,
    MAX_RETRY_MS,
    MAX_SEND_COUNT,
    MAX_WAIT_MS,
    ORDERS,
    STEPS,
    Setting,
    Word,
    orders,
    steps,
)

if TYPE_CHECKING:
    from rmq_store.reliable import Outbox, Stub

_PAUSE_S = 0.08
_ROUND_S = 0.1


class RolledBackError(Exception):
    """A business transaction that changes its mind."""


@dataclass(frozen=True, slots=True)
class _Order:
    order_id: str
    body: str
    key: str | None
    groups: tuple[str, ...]
    properties: dict[str, str]
    delay_level: int
    kills: bool


def body_of(order_id: str, chance: random.Random) -> str:
    """Text that says whose it is, and whether it is whole."""
    payload = f"{order_id}/{chance.getrandbits(64):x}"
    return f"{payload}/{zlib.crc32(payload.encode())}"


def run_sender(setting: Setting, chance: random.Random, number: int, trap: points.Trap, skew_ms: int) -> None:
    """Commit orders, or roll them back, until the life's senders end."""
    from rmq_store import Store
    from rmq_store.client import Producer, ProducerConfig
    from rmq_store.reliable import Outbox, ResendBackoff, open_engine

    points.arm_sender(trap)
    engine = open_engine(setting.stubs_url)
    backoff = ResendBackoff(FIRST_WAIT_MS, MAX_WAIT_MS, FIRST_RETRY_MS, MAX_RETRY_MS)
    with (
        Store.open(setting.store_path, clock=setting.store_clock) as store,
        Producer(
            "pg_orders",
            UnreliableCluster(store, setting, chance),
            ProducerConfig(retry_times_when_send_failed=0),
        ) as producer,
        Outbox(
            producer, engine, setting.tables,
            clock=setting.clock(skew_ms), lease_ms=LEASE_MS, mark_delay_ms=50, backoff=backoff,
        ) as outbox,
    ):  # fmt: skip
        count = 0
        while not setting.words[Word.SENDERS_END]:
            made = [_draw(setting, chance, f"{number}x{count + each}") for each in range(chance.choice((1, 1, 2)))]
            count += len(made)
            _commit(setting, engine, outbox, made, chance, trap)
            time.sleep(chance.uniform(0, 2 * _PAUSE_S))
    engine.dispose()


def _draw(setting: Setting, chance: random.Random, order_id: str) -> _Order:
    topic = STEPS if chance.random() < 0.35 else ORDERS
    names = [group.name for group in setting.groups if group.topic == topic]
    groups = tuple(sorted(chance.sample(names, chance.randrange(1, len(names) + 1))))
    properties: dict[str, str] = {}
    delay_level = 0
    if topic == ORDERS:
        drawn = chance.random()
        if drawn < 0.20:
            properties[FAILS] = "1"
        elif drawn < 0.24:
            properties[POISON] = "1"
        elif drawn < 0.29:
            delay_level = 3
    elif chance.random() < 0.15:
        properties[FAILS] = "1"
    kills = not setting.notes("killer") and topic == ORDERS and order_id.endswith("5")
    if kills:
        properties = {KILLS: "1"}
    key = chance.choice(KEYS) if topic == STEPS else None
    return _Order(order_id, body_of(order_id, chance), key, groups, properties, delay_level, kills)


def _commit(
    setting: Setting, engine: sa.Engine, outbox: Outbox, made: list[_Order], chance: random.Random, trap: points.Trap
) -> None:
    from rmq_store.reliable.outbox import stub

    rolls_back = chance.random() < 0.1
    stubs: list[Stub] = []
    try:
        with outbox.begin() as connection:
            stubs += [
                _add(connection, outbox, order, send_now=not order.kills and chance.random() < 0.7) for order in made
            ]
            if rolls_back:
                raise RolledBackError
            trap.reach(points.SENDER[0])
    except RolledBackError:
        for order in made:
            setting.note("rolled back", order.order_id)
        # As if it took the commit for done.
        outbox.flush_after_commit(*stubs)
        return
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        _pass_if_transient(error)
        return
    for order in made:
        if order.kills:
            setting.note("killer", order.order_id)
    if chance.random() < 0.05:
        try:
            with engine.begin() as connection:
                stub.void(connection, setting.tables, made[0].order_id)
        except sa.exc.DBAPIError as error:
            _pass_if_transient(error)


def _add(connection: sa.Connection, outbox: Outbox, order: _Order, *, send_now: bool) -> Stub:
    from rmq_store.client import Message

    step = 0
    if order.key is not None:
        # The lock gives the transactions of a key their order.
        connection.execute(steps.update().where(steps.c.key_name == order.key).values(step=steps.c.step + 1))
        step = connection.scalar(sa.select(steps.c.step).where(steps.c.key_name == order.key)) or 0
    connection.execute(
        orders.insert().values(
            order_id=order.order_id, body=order.body, key_name=order.key, step=step,
            group_names=" ".join(order.groups), kills=order.kills,
        )
    )  # fmt: skip
    message = Message(
        STEPS if order.key is not None else ORDERS,
        order.body.encode(),
        properties=order.properties,
        sharding_key=order.key,
        delay_level=order.delay_level,
    )
    return outbox.add(connection, message, groups=order.groups, message_id=order.order_id, send_now=send_now)


def _pass_if_transient(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> None:
    """Raise it unless the business would try again: the database is away, or has chosen a victim."""
    from rmq_store.reliable.database.transact import is_transient

    if not is_transient(error):
        raise error
    time.sleep(0.05)


def run_relay(setting: Setting, chance: random.Random, trap: points.Trap, skew_ms: int) -> None:
    """Rounds of a relay, until all ends."""
    from rmq_store import Store
    from rmq_store.client import Producer, ProducerConfig
    from rmq_store.reliable import Inboxes, Relay, RelayService, ResendBackoff, open_engine

    points.arm_relay(trap)
    engine = open_engine(setting.stubs_url)
    other = engine if setting.is_one_database else open_engine(setting.effects_url)
    inboxes = Inboxes(engine, other=other)
    with Store.open(setting.store_path, clock=setting.store_clock) as store:
        cluster = UnreliableCluster(store, setting, chance)
        with Producer("pg_relay", cluster, ProducerConfig(retry_times_when_send_failed=0)) as producer:
            relay = Relay(
                producer, engine, setting.tables,
                inboxes=inboxes, backend=cluster, max_send_count=MAX_SEND_COUNT,
                backoff=ResendBackoff(FIRST_WAIT_MS, MAX_WAIT_MS, FIRST_RETRY_MS, MAX_RETRY_MS),
                lease_ms=LEASE_MS, clock=setting.clock(skew_ms), page_rows=20,
            )  # fmt: skip
            service = RelayService(relay, cluster, inboxes, setting.tables, collect_every_s=0.5)
            stop = threading.Event()
            while not setting.words[Word.ALL_END]:
                service.run_once(stop=stop)
                time.sleep(chance.uniform(0, 2 * _ROUND_S))
    engine.dispose()
    other.dispose()
