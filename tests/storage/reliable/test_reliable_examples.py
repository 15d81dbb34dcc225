"""The programs in examples/reliable, which docs/reliable.md shows: run as they stand."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from helpers.patient import PATIENT
from rmq_store import Store
from rmq_store.client import LocalBackend, Message, Producer, PushConsumer, SimpleConsumer
from rmq_store.reliable import Idempotency, Outbox, create_tables, open_engine

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "reliable"


def run_example(name: str, scratch: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    temporary = scratch / "temporary"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": str(ROOT / "storage"), "TMPDIR": str(temporary)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert list(temporary.iterdir()) == []
    return done


def test_the_first_program_of_the_guide_counts_each_order_once(scratch: Path) -> None:
    done = run_example("first.py", scratch)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[('milk', 1), ('tea', 2)]\n", "")


def test_the_guide_begins_with_the_first_program() -> None:
    page = (ROOT / "docs" / "reliable.md").read_text(encoding="utf-8")
    assert (EXAMPLES / "first.py").read_text(encoding="utf-8") in page
    assert page.index("```python") < 1_500


SAID = [
    "3 orders placed: 97 pieces of tea left",
    "one of them sent twice: 97 pieces left",
    "an order that was rolled back: 0 messages",
    "the warehouse is closed, and its group's offset is moved past a message: the message is lost",
    "a later order reveals the loss, and the relay sends the message again: 95 pieces left",
    "an operator must decide: dead_letter, LookupError: no such item: coffee",
]


def test_orders_and_stock_agree_without_any_server(scratch: Path) -> None:
    done = run_example("orders.py", scratch)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, SAID, "")


@pytest.mark.slow
def test_orders_and_stock_agree_on_a_database_and_a_store_that_were_used_before(scratch: Path) -> None:
    given = ("--database", f"sqlite:///{scratch}/shop.db", "--store", str(scratch / "shop"))
    for _ in range(2):
        done = run_example("orders.py", scratch, *given)
        assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, SAID, "")


@pytest.mark.parametrize("database_kind", ["postgresql", "mariadb"], indirect=True)
def test_orders_and_stock_agree_on_real_servers(scratch: Path, database_url: str, redis_url: str) -> None:
    given = ("--database", "env:SHOP_DB", "--redis", "env:SHOP_REDIS", "--store", str(scratch / "shop"))
    done = run_example("orders.py", scratch, *given, SHOP_DB=database_url, SHOP_REDIS=redis_url)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, SAID, "")


# ---- variants


@pytest.fixture(scope="module")
def variants() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("reliable_variants", EXAMPLES / "variants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Shop:
    """A database, a store, an outbox and an idempotent group."""

    def __init__(self, root: Path, variants: ModuleType) -> None:
        self.url = f"sqlite:///{root}/shop.db"
        self.engine = open_engine(self.url)
        create_tables(self.engine)
        variants.Base.metadata.create_all(self.engine)
        self.order: Any = variants.Order
        self.store = Store.open(root / "store", create=True)
        self.store.create_topic("Orders", queue_count=1)
        self.backend = LocalBackend(self.store)
        self.producer = Producer("pg", self.backend, PATIENT)
        self.producer.start()
        self.outbox = Outbox(self.producer, self.engine, groups=["cg"])
        self.once = Idempotency("cg", self.engine)

    def items(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(sa.select(self.order.item).order_by(self.order.id)))

    def bodies(self) -> list[bytes]:
        batches = self.store.read("Orders", 0, 0, self.store.queue_range("Orders", 0)[1])
        return [body for batch in batches for body in batch.column("body").to_pylist()]

    def close(self) -> None:
        self.once.close()
        self.outbox.close()
        self.producer.shutdown()
        self.backend.close()
        self.store.close()
        self.engine.dispose()


@pytest.fixture
def shop(scratch: Path, variants: ModuleType) -> Iterator[Shop]:
    made = Shop(scratch, variants)
    yield made
    made.close()


def test_messages_are_added_to_whatever_transaction_there_is(shop: Shop, variants: ModuleType) -> None:
    variants.with_a_transaction_of_your_own(shop.outbox, shop.engine, "tea")
    variants.with_a_session(shop.outbox, sessionmaker(shop.engine), "milk")

    async def use_async_session() -> None:
        engine = create_async_engine(shop.url.replace("sqlite:", "sqlite+aiosqlite:"))
        await variants.with_an_async_session(shop.outbox, async_sessionmaker(engine), "rum")
        await engine.dispose()

    asyncio.run(use_async_session())
    assert shop.items() == ["tea", "milk", "rum"]
    assert shop.bodies() == [b"tea", b"milk", b"rum"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["in_order", "as_rows"])
def test_each_listener_does_a_repeated_message_once(shop: Shop, variants: ModuleType, name: str) -> None:
    consumer = PushConsumer("cg", shop.backend)
    consumer.subscribe("Orders")
    getattr(variants, name)(shop.once, consumer)
    send_twice(shop)
    with consumer:
        consumer.start()
        wait_for(lambda: shop.once.counts().done == 1 and shop.once.counts().duplicates_by_inbox >= 1)
    assert shop.items() == ["tea"]


def send_twice(shop: Shop) -> None:
    for _ in range(2):
        tea = Message("Orders", b"tea", properties={"OUTBOX_ID": "A1", "UNIQ_KEY": "A1"})
        shop.producer.send(tea, keep_unique_key=True)


def test_an_effect_elsewhere_is_not_repeated_while_the_inbox_knows_it(shop: Shop, variants: ModuleType) -> None:
    mails: list[str] = []
    consumer = PushConsumer("cg", shop.backend)
    consumer.subscribe("Orders")
    variants.with_an_effect_elsewhere(shop.once, consumer, mails.append)
    send_twice(shop)
    with consumer:
        consumer.start()
        wait_for(lambda: shop.once.counts().done == 1 and shop.once.counts().duplicates_by_inbox >= 1)
    assert mails == ["tea"]


def test_a_simple_consumer_acknowledges_what_was_done_before(shop: Shop, variants: ModuleType) -> None:
    send_twice(shop)
    with SimpleConsumer("cg", shop.store, {"Orders": "*"}, await_duration=timedelta(seconds=1)) as consumer:
        done = variants.with_a_simple_consumer(shop.once, consumer)
        if done < 2:
            done += variants.with_a_simple_consumer(shop.once, consumer)
        assert done == 2
        assert variants.with_a_simple_consumer(shop.once, consumer) == 0
    assert shop.items() == ["tea"]
