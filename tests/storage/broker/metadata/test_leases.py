"""Leases between processes: refused with the holder's name, freed by death, never kept by a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_store.broker.metadata.leases import STUCK_AFTER_MS, Lease, live_leases
from rmq_store.errors import LeaseHeldError, NotAStoreError, UsageError

HOLDER = """
import sys
from rmq_store.broker.metadata.leases import Lease
lease = Lease(sys.argv[1], "g", "t", clock=lambda: 1_700_000_000_000)
lease.acquire("query orders-to-lake")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_member_is_refused_and_told_who_holds_the_lease(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        lease = Lease(tmp_path, "g", "t", clock=lambda: 1_700_000_060_000)
        with pytest.raises(LeaseHeldError) as caught:
            lease.acquire("me")
        assert caught.value.holder == "query orders-to-lake"
        text = str(caught.value)
        assert f"'query orders-to-lake' (process {process.pid}, since 2023-11-14 22:13:20 UTC)" in text
        assert "stuck" not in text
        assert not lease.held()


def test_a_holder_without_a_heartbeat_is_called_stuck_but_keeps_the_lease(tmp_path: Path) -> None:
    with holder(tmp_path):
        lease = Lease(tmp_path, "g", "t", clock=lambda: 1_700_000_000_000 + STUCK_AFTER_MS + 5000)
        with pytest.raises(LeaseHeldError, match="stuck: no heartbeat for 125 s"):
            lease.acquire("me")


def test_a_killed_holder_frees_the_lease_at_once(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        lease = Lease(tmp_path, "g", "t")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lease.holder() is None
        lease.acquire("me")
        assert lease.held()
        assert [(info.name, info.owner, info.pid) for info in live_leases(tmp_path, "g")] == [("t", "me", os.getpid())]


def test_a_heartbeat_is_seen_by_others_and_the_lease_can_be_given_back(tmp_path: Path) -> None:
    now_ms = 1000
    lease, other = (Lease(tmp_path, "g", "t", clock=lambda: now_ms) for _ in range(2))
    lease.acquire("me")
    now_ms += STUCK_AFTER_MS + 1
    info = other.holder()
    assert info is not None and info.is_stuck(now_ms) and info.started_ms == 1000
    assert lease.heartbeat()
    info = other.holder()
    assert info is not None and not info.is_stuck(now_ms) and info.heartbeat_ms == now_ms
    lease.release()
    assert not lease.held() and not lease.heartbeat()
    assert other.holder() is None
    other.acquire("other")
    assert other.held()


def test_leases_of_other_topics_and_groups_are_free(tmp_path: Path) -> None:
    leases = [Lease(tmp_path, group, name) for group in ("g", "h") for name in ("t", "%RETRY%g")]
    for lease in leases:
        lease.acquire("me")
    assert [info.name for info in live_leases(tmp_path, "g")] == ["%RETRY%g", "t"]


def test_two_members_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = Lease(tmp_path, "g", "t"), Lease(tmp_path, "g", "t")
    first.acquire("first")
    with pytest.raises(LeaseHeldError) as caught:
        second.acquire("second")
    assert caught.value.holder == "first"
    with pytest.raises(LeaseHeldError):
        first.acquire("again")
    assert first.held()


def test_a_forked_child_holds_no_lease_and_does_not_free_its_parents(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "g", "t")
    lease.acquire("parent")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            lost = not lease.held() and not lease.heartbeat()
            lease.release()
            status = 0 if lost else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lease.held()
    with pytest.raises(LeaseHeldError):
        Lease(tmp_path, "g", "t").acquire("me")


def test_a_lease_whose_file_was_removed_is_lost_and_says_so(tmp_path: Path) -> None:
    lease, thief = Lease(tmp_path, "g", "t"), Lease(tmp_path, "g", "t")
    lease.acquire("me")
    (tmp_path / "pyrmq" / "groups" / "g" / "t.lease").unlink()
    assert not lease.held()
    thief.acquire("thief")
    assert not lease.heartbeat()
    lease.release()
    assert thief.held(), "giving back a lost lease must not take the new holder's file away"


def test_names_that_could_leave_the_directory_are_refused(tmp_path: Path) -> None:
    for group, name in (("../g", "t"), ("g", "../t"), ("g", "a/b"), ("", "t"), ("g", ".."), ("g@h", "t")):
        with pytest.raises(UsageError):
            Lease(tmp_path, group, name)
    with pytest.raises(UsageError):
        live_leases(tmp_path, "..")
    assert list(tmp_path.iterdir()) == []


def test_the_group_directory_is_not_followed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "pyrmq" / "groups").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pyrmq" / "groups" / "g").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError):
        Lease(tmp_path, "g", "t").acquire("me")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_longest_names_and_owners_are_kept_apart_and_shown(tmp_path: Path) -> None:
    names = ["%RETRY%" + "x" * 247 + end for end in "ab"]
    leases = [Lease(tmp_path, "g", name) for name in names]
    for lease in leases:
        lease.acquire("\N{PILE OF POO}" * 300)
    infos = live_leases(tmp_path, "g")
    assert [info.name for info in infos] == names
    assert infos[0].owner == "\N{PILE OF POO}" * 256


def test_looking_at_leases_touches_nothing(tmp_path: Path) -> None:
    assert live_leases(tmp_path, "g") == []
    assert Lease(tmp_path, "g", "t").holder() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "note",
    [
        b"", b"{", b"[]", b"[" * 3000, b'{"name":"t"}', b'{"name":1,"owner":"x","pid":%d,"started_ms":1}',
        b'{"name":"t","owner":"x","pid":%d,"started_ms":99999999999999999}',
        b'{"name":"t","owner":"x","pid":%d,"started_ms":-1}', b'{"name":"t","owner":"x","pid":1,"started_ms":1}',
    ],
)  # fmt: skip
def test_a_lease_file_that_says_nonsense_names_the_process_only(tmp_path: Path, note: bytes) -> None:
    lease = Lease(tmp_path, "g", "t")
    lease.acquire("me")
    with (tmp_path / "pyrmq" / "groups" / "g" / "t.lease").open("r+b") as file:
        file.seek(64)
        file.write(note.replace(b"%d", b"%d" % os.getpid()).ljust(4096 - 64))
    with pytest.raises(LeaseHeldError, match=f"process {os.getpid()}") as caught:
        Lease(tmp_path, "g", "t").acquire("other")
    assert caught.value.holder == ""
