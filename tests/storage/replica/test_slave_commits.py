"""Offsets that groups committed at a slave while its master was away: they go up, or the master's count."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable
from rmq_store.protocol.errors import RemotingError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.replica.metadata import MetadataCopy
from rmq_store.replica.slave_commits import Commit, SlaveCommits, remove_commits

from .fake_master import OFFSETS, FakeMaster, master_of_5, offsets

ORDERS, BILLS = ("Orders", 0), ("Orders", 1)


class Master(FakeMaster):
    """Takes commits, or ignores them while a reset is pending."""

    def begin(self) -> None:
        self.committed: dict[tuple[str, int], int] = {}
        self.remark = ""

    def ask(self, command: RemotingCommand) -> RemotingCommand | RemotingError:
        answer = super().ask(command)
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and not isinstance(answer, RemotingError):
            fields = command.ext_fields
            answer.remark = answer.remark or self.remark
            if not answer.code and not self.remark:
                self.committed[fields["consumerGroup"], int(fields["queueId"])] = int(fields["commitOffset"])
        return answer


class Slave:
    """A slave whose master had offset 7 in queue 0 and 3 in queue 1, when it went away."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "pyrmq").mkdir()
        self.master = Master(**vars(master_of_5()))
        self.master.begin()
        self.master.bodies[RequestCode.UPDATE_CONSUMER_OFFSET] = b""
        self.commits = SlaveCommits(root)
        self.copy = MetadataCopy(root, self.master, commits=self.commits)
        self.meet()

    def meet(self) -> None:
        """The master answers again."""
        self.copy.take(self.copy.ask())
        assert self.copy.write_offsets(1000)

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        return OffsetTable(self.root).committed("billing")


@pytest.fixture
def slave(tmp_path: Path) -> Slave:
    return Slave(tmp_path / "replica")


def test_a_greater_offset_goes_up_and_both_are_told(slave: Slave, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    slave.commits.commit("billing", {ORDERS: 9})
    slave.commits.commit("billing", {ORDERS: 12})
    assert slave.offsets == {ORDERS: 12, BILLS: 3}
    assert SlaveCommits(slave.root).pending() == [Commit("billing", ORDERS, 12, 7)]  # as another process finds it
    slave.meet()
    assert slave.master.committed == {("billing", 0): 12}
    assert slave.offsets == {ORDERS: 12, BILLS: 3}
    assert slave.commits.pending() == []
    assert "12 was committed at the slave; the master had 7, and has it now" in caplog.text


@pytest.mark.parametrize(
    ("at_master", "reason"),
    [
        (6, "the master has 6, which counts: it was reset meanwhile"),
        (0, "the master has 0, which counts: it was reset meanwhile"),
        (12, "the master has 12, which counts: it has gone on"),
        (20, "the master has 20, which counts: it has gone on"),
    ],
)
def test_a_reset_since_then_and_progress_win(
    slave: Slave, caplog: pytest.LogCaptureFixture, at_master: int, reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    slave.commits.commit("billing", {ORDERS: 12})
    slave.master.bodies[OFFSETS] = offsets(billing={0: at_master, 1: 3})
    slave.meet()
    assert slave.master.committed == {}
    assert slave.offsets == {ORDERS: at_master, BILLS: 3}
    assert slave.commits.pending() == []
    assert f"12 was committed at the slave; {reason}" in caplog.text


def test_an_offset_that_was_removed_at_the_master_stays_removed(slave: Slave) -> None:
    slave.commits.commit("billing", {ORDERS: 12})
    slave.master.bodies[OFFSETS] = offsets(billing={1: 3})
    slave.meet()
    assert (slave.master.committed, slave.offsets) == ({}, {BILLS: 3})


def test_a_group_that_the_master_does_not_know_goes_up(slave: Slave) -> None:
    slave.commits.commit("other", {ORDERS: 2})
    slave.meet()
    assert slave.master.committed == {("other", 0): 2}
    assert OffsetTable(slave.root).committed("other") == {ORDERS: 2}


def test_a_pending_reset_and_a_refusal_win(slave: Slave, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    slave.commits.commit("billing", {ORDERS: 12})
    slave.master.remark = "Offset has been previously reset"
    slave.meet()
    assert slave.offsets == {ORDERS: 7, BILLS: 3}
    assert "a reset is pending there" in caplog.text
    slave.commits.commit("billing", {ORDERS: 12})
    slave.master.refused[RequestCode.UPDATE_CONSUMER_OFFSET] = (17, "no such topic")
    slave.meet()
    assert slave.offsets == {ORDERS: 7, BILLS: 3}
    assert "no such topic" in caplog.text
    assert slave.commits.pending() == []


def test_a_master_that_goes_away_again_decides_nothing(slave: Slave) -> None:
    slave.commits.commit("billing", {ORDERS: 12})
    slave.master.lost.add(RequestCode.UPDATE_CONSUMER_OFFSET)
    with pytest.raises(RemotingError):
        slave.copy.ask()
    assert slave.offsets == {ORDERS: 12, BILLS: 3}
    slave.master.lost.clear()
    slave.meet()
    assert slave.master.committed == {("billing", 0): 12}


def test_an_offset_that_comes_while_the_master_is_asked_is_not_lost(slave: Slave) -> None:
    slave.commits.commit("billing", {ORDERS: 12})
    tables = slave.copy.ask()
    slave.commits.commit("billing", {ORDERS: 15, BILLS: 4})
    slave.copy.take(tables)
    assert slave.copy.write_offsets(1000)
    assert slave.offsets == {ORDERS: 15, BILLS: 4}
    slave.master.bodies[OFFSETS] = offsets(billing={0: 12, 1: 3})
    slave.meet()
    assert slave.master.committed == {("billing", 0): 15, ("billing", 1): 4}


def test_a_death_between_the_two_files_loses_no_offset(slave: Slave) -> None:
    def dies(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith("consumerOffset.json"):
            raise KeyboardInterrupt

    durable.hook = dies
    try:
        with pytest.raises(KeyboardInterrupt):
            slave.commits.commit("billing", {ORDERS: 12})
    finally:
        durable.hook = None
    copy = MetadataCopy(slave.root, slave.master, commits=SlaveCommits(slave.root))
    copy.take(copy.ask())
    copy.write_offsets(1000)
    assert slave.master.committed == {("billing", 0): 12}


def test_a_damaged_file_is_named_and_a_promotion_forgets_all(slave: Slave) -> None:
    slave.commits.commit("billing", {ORDERS: 12})
    for text in ('{"format": 2, "commits": []}', '{"format": 1, "commits": [["g", "t", 0, "1", 2]]}', "x"):
        (slave.root / "pyrmq" / "slave_commits.json").write_text(text)
        with pytest.raises(CorruptConfigError, match=r"slave_commits\.json"):
            SlaveCommits(slave.root).pending()
    remove_commits(slave.root)
    remove_commits(slave.root)
    assert SlaveCommits(slave.root).pending() == []
