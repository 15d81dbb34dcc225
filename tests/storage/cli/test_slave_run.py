"""`rmq broker run --role SLAVE` over a master in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.waiting import until
from rmq_store import Store
from rmq_store.cli.shared import stop_signal
from rmq_store.replica import follow
from rmq_store.replica import master as replica_master
from storage.replica.conftest import CONFIG, fill
from storage.replica.ha_master import FollowedMaster, HAMaster

Run = Callable[..., Result]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HAMaster]:
    """A master that any address leads to."""
    monkeypatch.setattr(follow, "WAIT_S", 0.02)
    with Store.open(tmp_path / "master", create=True, config=CONFIG) as store:
        store.create_topic("Orders", queue_count=2)
        fill(store, 30)
        ha = HAMaster(store)
        made: list[dict[str, Any]] = []

        def master(settings: object, **given: Any) -> Any:
            made.append(given)
            found: Any = FollowedMaster.of(ha, CONFIG)
            found.__class__ = type(
                "Master", (FollowedMaster,), {"__enter__": lambda self: self, "__exit__": lambda *_: None}
            )
            return found

        monkeypatch.setattr(replica_master, "Master", master)
        ha.made = made  # type: ignore[attr-defined]
        yield ha
        ha.close()


def test_it_serves_reads_until_it_is_stopped(
    run: Run, served: HAMaster, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, port_file, stops = scratch / "slave", scratch / "port", []
    root.mkdir()

    class Signal(stop_signal.StopSignal):
        def __init__(self) -> None:
            super().__init__()
            stops.append(self)

    monkeypatch.setattr(stop_signal, "StopSignal", Signal)
    seen: list[int] = []

    def look() -> None:
        until(port_file.exists, "the slave does not listen")
        with Connection(port_file.read_text().strip()) as asked:
            until(lambda: requests.max_offset(asked, "Orders") == 15, "the slave has not all")
            seen.append(len(requests.frames(requests.pull(asked, "Orders"))))
        stops[0].ask(0, None)

    watcher = threading.Thread(target=look)
    watcher.start()
    words = ["broker", "run", str(root), "--role", "SLAVE", "--master", "10.0.0.7:10911", "--broker-id", "3"]
    result = run(*words, "--listen", "127.0.0.1:0", "--port-file", str(port_file))
    watcher.join()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{root}: slave 3 of broker broker-a listens at 127.0.0.1:")
    assert seen == [15]
    assert served.made == [{"address": "10.0.0.7:10911", "ha_address": ""}]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--role", "SLAVE", "--listen", "127.0.0.1:0"], "a slave follows a master"),
        (["--role", "SLAVE", "--master", "127.0.0.1:9"], "say --listen"),
        (["--role", "SLAVE", "--master", "127.0.0.1:9", "--listen", "0.0.0.0:1"], "clients are told this address"),
        (["--role", "SLAVE", "--master", "127.0.0.1:9", "--listen", "10.0.0.1:1"], "other machines reach"),
        (["--role", "SLAVE", "--master", "rmq://127.0.0.1:9", "--listen", "127.0.0.1:0"], "say --broker NAME"),
        (["--role", "SLAVE", "--master", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--no-retention"], "a master's"),
        (["--master", "127.0.0.1:9"], "say --role SLAVE"),
        (["--broker-id", "2"], "say --role SLAVE"),
    ],
)
def test_options_that_do_not_fit_are_refused(run: Run, scratch: Path, words: list[str], text: str) -> None:
    (scratch / "slave").mkdir()
    result = run("broker", "run", str(scratch / "slave"), *words)
    assert result.exit_code == 2
    assert text in result.stderr
    assert not list((scratch / "slave").iterdir())


def test_a_store_of_its_own_is_refused(run: Run, served: HAMaster, scratch: Path) -> None:
    Store.open(scratch / "own", create=True, config=CONFIG).close()
    words = ["--role", "SLAVE", "--master", "127.0.0.1:9", "--listen", "127.0.0.1:0"]
    result = run("broker", "run", str(scratch / "own"), *words)
    assert result.exit_code == 2
    assert "a store of its own, no replica" in result.stderr
