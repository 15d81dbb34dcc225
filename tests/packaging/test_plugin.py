"""The pytest plugin, as its users have it: found through its entry point, in runs of their own.

The plugin is loaded in every pytest run of an environment, also where nobody knows of it. So it must be cheap, and must
not fail: a plugin that cannot be imported is the end of all tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rmq_store import StoreConfig

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with somebody's tests, and the entry point of setup.py beside the packages."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    line = next(line for line in setup.splitlines() if '"pytest11"' in line)
    entries = re.findall(r'"([\w-]+ = [\w.]+)"', line)
    assert len(entries) == 2
    info = tmp_path / "site" / "pyspark_rmq_under_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-rmq-under-test\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[pytest11]\n" + "\n".join(entries))
    (tmp_path / "tests").mkdir()
    return tmp_path


def run(
    project: Path, test: str, *arguments: str, hidden: tuple[str, ...] = (), warnings: str = "error"
) -> subprocess.CompletedProcess[str]:
    """Run a test file in a fresh pytest; `hidden` modules cannot be imported there."""
    (project / "tests" / "test_mine.py").write_text(textwrap.dedent(test))
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {hidden!r}: raise ModuleNotFoundError('hidden: ' + name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import pytest; sys.exit(pytest.main(sys.argv[1:]))\n"
    )
    paths = [project / "site", ROOT / "storage", ROOT / "connector"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-c", block, "-q", "-p", "no:cacheprovider", "-W", warnings, *arguments, "tests"],
        cwd=project,
        env=environment | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def passed(done: subprocess.CompletedProcess[str], count: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout


def test_the_fixtures_are_there_without_a_conftest(project: Path) -> None:
    done = run(project, "", "--fixtures")
    names = "rmq_store rmq_topic rmq_group rmq_clock rmq_store_config rmq_broker rmq_broker_session rmq_broker_config"
    for name in names.split():
        assert re.search(rf"^{name}\b", done.stdout, re.MULTILINE), done.stdout


def test_each_test_has_a_store_a_topic_and_a_group_of_its_own(project: Path) -> None:
    passed(
        run(
            project,
            """
            import pytest

            seen = set()

            @pytest.mark.parametrize("what", ["räksmörgås", "../../etc", "x" * 300])
            def test_a_store(what, rmq_store, rmq_topic, rmq_group):
                assert rmq_store.messages(rmq_topic) == []
                assert {rmq_topic, rmq_group, rmq_store.path}.isdisjoint(seen)
                seen.update({rmq_topic, rmq_group, rmq_store.path})
                rmq_store.produce(rmq_topic, "tea", b"milk", tags="TagA", keys="K1", properties={"for": what[:9]})
                taken = rmq_store.consume(rmq_topic, rmq_group)
                assert [(row["body"], row["tags"], row["keys"], row["topic"]) for row in taken] == [
                    (b"tea", "TagA", "K1", rmq_topic), (b"milk", "TagA", "K1", rmq_topic)
                ]
                assert taken[0]["properties"]["for"] == what[:9]
                assert rmq_store.consume(rmq_topic, rmq_group) == []
                assert rmq_store.consume(rmq_topic, "cg_other") == taken
                assert rmq_store.messages(rmq_topic) == taken
                assert rmq_store.messages("NoSuchTopic") == []
            """,
        ),
        3,
    )


def test_the_clock_stands_still_until_it_is_moved_and_rules_the_store(project: Path) -> None:
    passed(
        run(
            project,
            """
            import subprocess, sys, time
            from datetime import timedelta
            import pytest
            from rmq_store import Store, UsageError

            def test_time(rmq_store, rmq_clock, rmq_topic):
                start = rmq_clock.now()
                assert abs(time.time() - start.timestamp()) < 1000 and rmq_clock() == round(start.timestamp() * 1000)
                rmq_store.produce(rmq_topic, "now")
                assert rmq_clock.advance(timedelta(hours=5)) == rmq_clock.now() == start + timedelta(hours=5)
                assert rmq_clock.set(start + timedelta(hours=6)) == start + timedelta(hours=6)
                assert rmq_store.advance(500) == 0
                rmq_store.produce(rmq_topic, "then")
                stored = [row["storeTimestamp"] - start for row in rmq_store.messages(rmq_topic)]
                assert stored == [timedelta(0), timedelta(hours=6, milliseconds=500)]
                with pytest.raises(UsageError, match="backwards"):
                    rmq_clock.set(start)

            def test_in_another_process(rmq_store, rmq_topic):
                rmq_store.advance(timedelta(days=400))
                send = "import sys; from rmq_store import *; Store.open(sys.argv[1]).send(Message(sys.argv[2], b'x'))"
                subprocess.run([sys.executable, "-c", send, rmq_store.path, rmq_topic], check=True)
                (row,) = rmq_store.messages(rmq_topic)
                assert row["storeTimestamp"] == rmq_store.clock.now()
            """,
        ),
        2,
    )


def test_a_delayed_message_comes_when_the_clock_says_so(project: Path) -> None:
    passed(
        run(
            project,
            """
            from datetime import timedelta

            def test_delay(rmq_store, rmq_topic, rmq_group):
                rmq_store.produce(rmq_topic, "later", properties={"DELAY": "5"})
                assert rmq_store.consume(rmq_topic, rmq_group) == []
                assert rmq_store.advance(timedelta(seconds=59)) == 0
                assert rmq_store.advance_to_next_due() == timedelta(seconds=1)
                assert [row["body"] for row in rmq_store.consume(rmq_topic, rmq_group)] == [b"later"]
                assert rmq_store.advance_to_next_due() is None
            """,
        ),
        1,
    )


@pytest.mark.statement("B05", "B06", "B08", "C13", "D01")
def test_a_plain_handler_goes_the_whole_ladder(project: Path) -> None:
    """B06, B08: 16 retries, 4 h 45 min 40 s, then the dead-letter queue."""
    passed(
        run(
            project,
            """
            from datetime import timedelta
            import pytest

            def test_ladder(rmq_store, rmq_topic, rmq_group):
                rmq_store.produce(rmq_topic, "good", "poison")
                start = rmq_store.clock.now()

                def handle(message):
                    if message["body"] == b"poison":
                        raise ValueError("cannot be read")
                    return "SUCCESS"

                taken = rmq_store.drain(rmq_topic, rmq_group, handle)
                bad = [row for row in taken if row["body"] == b"poison"]
                assert [row["reconsumeTimes"] for row in bad] == list(range(17))
                assert {row["topic"] for row in bad} == {rmq_topic}
                assert len(taken) == 18
                gaps = [b["storeTimestamp"] - a["storeTimestamp"] for a, b in zip(bad, bad[1:])]
                minutes = [1 / 6, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
                assert gaps == [timedelta(minutes=m) for m in minutes]
                assert rmq_store.clock.now() - start == timedelta(seconds=17140)
                (dead,) = rmq_store.dead_letters(rmq_group)
                assert (dead["body"], dead["topic"], dead["reconsumeTimes"]) == (b"poison", rmq_topic, 17)
                assert dead["storeTopic"] == "%DLQ%" + rmq_group
                assert rmq_store.drain(rmq_topic, rmq_group, handle) == []

            def test_a_handler_gets_the_rows_that_a_job_gets(rmq_store, rmq_topic, rmq_group):
                from pyspark.sql import Row
                from pyspark_rmq.schema.schema import ORIGIN_FIELDS, SOURCE_SCHEMA

                rmq_store.produce(rmq_topic, "x", keys="k", properties={"a": "b"})
                columns = [*SOURCE_SCHEMA.names, *(field.name for field in ORIGIN_FIELDS)]
                rows = []

                def handle(row):
                    assert isinstance(row, Row) and list(row.asDict()) == columns
                    rows.append(row)
                    return "SUCCESS" if row.reconsumeTimes else "RECONSUME_LATER"

                deliveries = rmq_store.drain(rmq_topic, rmq_group, handle)
                assert [row.asDict() for row in rows] == deliveries
                first, again = rows
                assert first.properties["a"] == again.properties["a"] == "b"
                assert (again.topic, again.originTopic, again.originQueueOffset) == (rmq_topic, rmq_topic, 0)
                assert again.properties["PYRMQ_ERROR_CLASS"] == "RECONSUME_LATER"
                assert (first.storeTopic, again.storeTopic) == (rmq_topic, "%RETRY%" + rmq_group)

            def test_few_retries_and_none(rmq_store, rmq_topic, rmq_group):
                rmq_store.produce(rmq_topic, "poison")
                assert len(rmq_store.drain(rmq_topic, rmq_group, lambda message: None, max_reconsume_times=2)) == 3
                assert len(rmq_store.dead_letters(rmq_group)) == 1

            def test_answers_mean_what_they_mean_in_a_job(rmq_store, rmq_topic, rmq_group):
                rmq_store.produce(rmq_topic, "good", "dead", "level 5", "again")
                start = rmq_store.clock.now()
                answers = {
                    b"good": lambda times: "SUCCESS",
                    b"dead": lambda times: "DLQ",
                    b"level 5": lambda times: "SUCCESS" if times else 5,
                    b"again": lambda times: "SUCCESS" if times else "RECONSUME_LATER",
                }
                taken = rmq_store.drain(
                    rmq_topic, rmq_group, lambda message: answers[message["body"]](message["reconsumeTimes"])
                )
                assert [(row["body"], row["reconsumeTimes"]) for row in taken[4:]] == [(b"again", 1), (b"level 5", 1)]
                assert [row["storeTimestamp"] - start for row in taken[4:]] == [
                    timedelta(seconds=10), timedelta(minutes=1)
                ]
                assert [row["body"] for row in rmq_store.dead_letters(rmq_group)] == [b"dead"]

            @pytest.mark.parametrize("answer", [True, False, "OK"])
            def test_what_would_fail_a_job_fails_here(rmq_store, rmq_topic, rmq_group, answer):
                rmq_store.produce(rmq_topic, "x")
                with pytest.raises(ValueError, match="the handler answered"):
                    rmq_store.drain(rmq_topic, rmq_group, lambda message: answer)

            def test_an_assertion_in_a_handler_is_the_tests_own(rmq_store, rmq_topic, rmq_group):
                rmq_store.produce(rmq_topic, "x")
                def handle(message):
                    assert message["body"] == b"y"
                with pytest.raises(AssertionError):
                    rmq_store.drain(rmq_topic, rmq_group, handle)
                assert rmq_store.dead_letters(rmq_group) == []
            """,
        ),
        8,
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.statement("B05", "B08", "C08", "C09", "D01")
def test_the_example_of_the_documentation_goes_the_whole_ladder_in_a_stream(project: Path) -> None:
    example = (ROOT / "examples" / "test_orders_job.py").read_text(encoding="utf-8")
    passed(run(project, example, warnings="default"), 1)


def test_the_settings_of_the_store_can_be_overridden(project: Path) -> None:
    passed(
        run(
            project,
            """
            from datetime import timedelta
            import pytest
            from pyspark_rmq.testing import RmqTestStore
            from rmq_store import StoreConfig

            @pytest.fixture
            def rmq_store_config():
                return StoreConfig(message_delay_level="1s 2s 3s 4s", broker_name="shop-a")

            def test_levels(rmq_store, rmq_topic, rmq_group):
                assert isinstance(rmq_store, RmqTestStore) and rmq_store.store.broker_name == "shop-a"
                rmq_store.produce(rmq_topic, "x", properties={"DELAY": "4"})
                assert rmq_store.advance_to_next_due() == timedelta(seconds=4)
            """,
        ),
        1,
    )


def test_a_run_that_uses_nothing_of_it_loads_nothing_heavy(project: Path) -> None:
    heavy = ["pyspark", "py4j", "numpy", "pyarrow", "pandas", "rich", "click"]
    test = f"""
        import sys

        def test_nothing():
            assert "pyspark_rmq.testing" in sys.modules
            assert {heavy!r} and not set({heavy!r}) & set(sys.modules)
            ours = [name for name in sys.modules if name.startswith(("pyspark_rmq", "rmq_store"))]
            assert sorted(ours) == ["pyspark_rmq", "pyspark_rmq.testing", "rmq_store", "rmq_store.testing"]
    """
    passed(run(project, test), 1)


def test_a_run_survives_an_environment_in_which_the_dependencies_are_broken(project: Path) -> None:
    hidden = ("pyspark", "py4j", "numpy", "pyarrow", "rich", "click")
    passed(run(project, "def test_nothing(): pass", hidden=hidden), 1)


def test_the_store_works_without_spark(project: Path) -> None:
    test = """
        def test_store(rmq_store, rmq_topic):
            rmq_store.produce(rmq_topic, "x")
            assert len(rmq_store.messages(rmq_topic)) == 1
    """
    passed(run(project, test, hidden=("pyspark", "py4j")), 1)


@pytest.mark.parametrize(("plugin", "fixture"), [("rmq", "rmq_store"), ("rmq-broker", "rmq_broker")])
def test_it_can_be_switched_off(project: Path, plugin: str, fixture: str) -> None:
    done = run(project, f"def test_store({fixture}): pass", "-p", f"no:{plugin}")
    assert f"fixture '{fixture}' not found" in done.stdout


def test_a_broker_of_its_own_serves_clients_without_spark(project: Path) -> None:
    test = """
        from rmq_store.client import Message, Producer

        def test_broker(rmq_broker, rmq_broker_session):
            assert rmq_broker.address != rmq_broker_session.address
            with Producer("pg", rmq_broker.url) as producer:
                producer.send(Message("Orders", b"tea"))
            assert rmq_broker.wait_for_messages("Orders", 1) == [b"tea"]
            rmq_broker_session.send("Orders", ["milk"])

        def test_another(rmq_broker, rmq_broker_session):
            assert rmq_broker.count("Orders") == 0
            assert rmq_broker_session.bodies("Orders") == [b"milk"]
    """
    passed(run(project, test, hidden=("pyspark", "py4j")), 2)


def test_the_small_store_takes_the_largest_message() -> None:
    from pyspark_rmq.testing.store import SMALL

    assert SMALL.max_message_size == StoreConfig().max_message_size < SMALL.mapped_file_size_commit_log
