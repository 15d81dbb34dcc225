"""The ends of a master's log, as 28 tells them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.master import LogEnds, Master


@pytest.fixture
def master() -> Iterator[Master]:
    with Master(ClusterSettings(name_servers=("127.0.0.1:1",)), address="127.0.0.1:2") as made:
        yield made


def tells(master: Master, monkeypatch: pytest.MonkeyPatch, start: object, end: object) -> None:
    body = json.dumps({"table": {"commitLogMinOffset": str(start), "commitLogMaxOffset": str(end)}}).encode()

    def ask(command: RemotingCommand) -> RemotingCommand:
        return response_to(command, 0, body=body)

    monkeypatch.setattr(master, "ask", ask)


@pytest.mark.parametrize(
    ("start", "end", "ends"), [(0, 0, (0, 0)), (-1, 0, (0, 0)), (1 << 30, 5 << 30, (1 << 30, 5 << 30))]
)
def test_a_broker_without_a_message_has_an_empty_log(
    master: Master, monkeypatch: pytest.MonkeyPatch, start: int, end: int, ends: tuple[int, int]
) -> None:
    """Brokers tell -1 as the start before their first segment."""
    tells(master, monkeypatch, start, end)
    assert master.log_ends() == LogEnds(*ends)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (-2, 0), (9, 8), ("", 0), (0, 1 << 62)])
def test_figures_that_no_log_has_are_refused(
    master: Master, monkeypatch: pytest.MonkeyPatch, start: object, end: object
) -> None:
    tells(master, monkeypatch, start, end)
    with pytest.raises(RemotingCommandError, match=r"does not tell where its log begins and ends \(28\)"):
        master.log_ends()
