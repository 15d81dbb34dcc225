"""Suites that freeze time (freezegun, time-machine) beside a broker of theirs.

Each runs in a process of its own: a library in C that meets other classes of `datetime` ends the process, and only the
first import of a process is in danger.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmq_store import real_time

ROOT = Path(__file__).resolve().parents[3]

# `frozen(when)` is freezegun's or time-machine's; what a script prints is what the test compares.
FREEZERS = {
    "freezegun": "from freezegun import freeze_time as frozen",
    "freezegun, ticking": "import functools, freezegun; frozen = functools.partial(freezegun.freeze_time, tick=True)",
    "time-machine": "import functools, time_machine; frozen = functools.partial(time_machine.travel, tick=False)",
    "time-machine, ticking": "from time_machine import travel as frozen",
}
HEAD = """
import faulthandler, pathlib, sys
faulthandler.enable()
faulthandler.dump_traceback_later(60, exit=True)
root = pathlib.Path(sys.argv[1])
"""
CLIENTS = """
from rmq_store.client import *
from rmq_store.testing import RmqTestBroker

def consume(broker, listener, group):
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with PushConsumer(group, broker.url, config) as consumer:
        consumer.subscribe("T")
        consumer.register_message_listener(MessageListenerConcurrently(listener))
        consumer.start()
        yield
"""


def printed(tmp_path: Path, *parts: str) -> list[str]:
    path = tmp_path / "suite.py"
    path.write_text("\n".join(parts), encoding="utf-8")
    roots = [str(ROOT / "storage"), str(ROOT / "connector")]
    code = f"import sys, runpy; sys.path[:0] = {roots!r}; runpy.run_path({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("freezer", FREEZERS)
@pytest.mark.parametrize("when", ["2024-03-03", "2031-03-03"])
def test_messages_are_sent_and_retried_while_time_stands_still(tmp_path: Path, freezer: str, when: str) -> None:
    """The SIGSEGV of a first send under frozen time, and waits that never ended."""
    body = f"""
failed = []
with RmqTestBroker(root / "b") as broker, frozen("{when}"):
    with Producer("p", broker.url) as producer:
        print(producer.send(Message("T", b"x")).status.name)
    def listen(messages, context):
        failed.extend(message.reconsume_times for message in messages)
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    for _ in consume(broker, listen, "cg"):
        broker.wait_until(lambda: len(failed) == 1)
        broker.wait_until(broker.advance_to_next_due)
        broker.wait_until(lambda: len(failed) == 2)
    print(failed, broker.wait_for_messages("T", 1))
"""
    lines = printed(tmp_path, HEAD, FREEZERS[freezer], CLIENTS, body)
    assert lines == ["SEND_OK", "[0, 1] [b'x']"]


@pytest.mark.parametrize("freezer", FREEZERS)
def test_a_wait_for_messages_that_do_not_come_ends(tmp_path: Path, freezer: str) -> None:
    body = """
with RmqTestBroker(root / "b") as broker, frozen("2024-03-03"):
    try:
        broker.wait_for_messages("T", 1, timeout_s=0.2)
    except TimeoutError as error:
        print(error)
"""
    assert printed(tmp_path, HEAD, FREEZERS[freezer], CLIENTS, body) == [
        "topic T has 0 messages, and not 1 after 0.2 s"
    ]


def test_a_freezer_that_is_imported_in_the_frozen_test_itself_is_noticed_by_the_next_client(tmp_path: Path) -> None:
    body = """
with RmqTestBroker(root / "b") as broker:
    assert "freezegun" not in sys.modules
    from freezegun import freeze_time
    with freeze_time("2024-03-03"), Producer("p", broker.url) as producer:
        print(producer.send(Message("T", b"x")).status.name, broker.bodies("T"))
"""
    assert printed(tmp_path, HEAD, CLIENTS, body) == ["SEND_OK [b'x']"]


def test_a_store_that_is_made_and_read_in_frozen_time_has_its_times(tmp_path: Path) -> None:
    """Nothing of pyarrow was used before; `broker.read` makes arrays, and the born time is the frozen one."""
    body = """
with freeze_time("2024-03-03"):
    from rmq_store import Message, Store
    with Store.open(root / "s", create=True) as store:
        store.create_topic("T", queue_count=1)
        store.send(Message("T", b"x"))
        (batch,) = store.read("T", 0, 0, 1)
        print(batch.column("bornTimestamp").to_pylist()[0].timestamp())
"""
    lines = printed(tmp_path, HEAD, "from freezegun import freeze_time", body)
    assert lines == ["1709424000.0"]


def test_staged_files_of_a_task_at_work_survive_a_frozen_future(tmp_path: Path) -> None:
    """Times of files are the machine's: beside a frozen year 2031 they would all be forgotten for years."""
    body = """
from rmq_store.broker.write.staged_files import sweep
(root / "pyrmq" / "staging" / "w").mkdir(parents=True)
with freeze_time("2031-03-03"):
    print(sweep(root, older_than_ms=3_600_000), (root / "pyrmq" / "staging" / "w").exists())
"""
    assert printed(tmp_path, HEAD, "from freezegun import freeze_time", body) == ["0 True"]


def test_an_asyncio_loop_of_ours_has_timers_that_end(tmp_path: Path) -> None:
    body = """
import asyncio
from rmq_store import real_time
with freeze_time("2024-03-03"):
    loop = real_time.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    print("over")
"""
    assert printed(tmp_path, HEAD, "from freezegun import freeze_time", body) == ["over"]


def test_the_clocks_are_those_of_the_machine(tmp_path: Path) -> None:
    import time

    path = tmp_path / "file"
    path.touch()
    assert abs(path.stat().st_mtime_ns - real_time.file_time_ns()) < 60 * 10**9
    assert abs(real_time.monotonic() - time.monotonic()) < 60
    assert real_time.monotonic_ns() // 10**9 == pytest.approx(real_time.monotonic(), abs=2)
