"""`rmq broker run` with slaves: the options, and what the command says."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import SendStatus, Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.format.frames.message import Message
from storage.cli.test_broker_serving import running

LISTEN = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--ha-listen", "127.0.0.1:0"), "say --listen"),
        (("--role", "SYNC_MASTER"), "say --listen"),
        ((*LISTEN, "--role", "SYNC_MASTER"), "--ha-listen"),
        ((*LISTEN, "--ha-allow", "10.0.0.7"), "--ha-listen"),
        ((*LISTEN, "--ha-listen", "0.0.0.0:0"), "--ha-allow"),
        ((*LISTEN, "--ha-listen", "127.0.0.1:0", "--ha-allow", "slave1"), "--ha-allow slave1"),
        ((*LISTEN, "--ha-listen", "127.0.0.1:0", "--slave-timeout", "5"), "--role SYNC_MASTER"),
        ((*LISTEN, "--ha-listen", "127.0.0.1:0", "--in-sync-replicas", "2"), "--role SYNC_MASTER"),
        ((*LISTEN, "--ha-listen", "127.0.0.1:0", "--ha-advertise", "0.0.0.0:10912"), "cannot advertise"),
        ((*LISTEN, "--ha-listen", "slave:1"), "slave"),
        ((*LISTEN, "--role", "MASTER"), "SYNC_MASTER"),
        ((*LISTEN, "--ha-tls"), "--ha-listen"),
        ((*LISTEN, "--slave-read"), "--ha-listen"),
        (("--slave-read",), "say --listen"),
        ((*LISTEN, "--ha-listen", "127.0.0.1:0", "--ha-tls"), "say --tls-cert and --tls-key"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    root = tmp_path / "store"
    Store.open(root, create=True, config=StoreConfig(mapped_file_size_commit_log=1 << 16)).close()
    result = CliRunner().invoke(commands, ["broker", "run", str(root), *given])
    assert result.exit_code == 2, result.output
    assert says in result.output


def test_a_sync_master_says_where_its_slaves_connect_and_waits_for_them(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=StoreConfig(mapped_file_size_commit_log=1 << 16)) as store:
        store.create_topic("Orders", 1)
        with running(
            tmp_path / "port", "broker", "run", root, *LISTEN, "--role", "SYNC_MASTER", "--ha-listen", "127.0.0.1:0",
            "--slave-timeout", "60000", stdout=-1,
        ) as (process, address):  # fmt: skip
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            found = re.search(rf"listens at {address}, SYNC_MASTER, slaves at 127\.0\.0\.1:(\d+)$", line)
            assert found, line
            assert store.send(Message("Orders", b"1")).status is SendStatus.SLAVE_NOT_AVAILABLE
            with socket.create_connection(("127.0.0.1", int(found[1]))) as slave:
                slave.sendall(struct.pack(">q", 0))
                offset, size = struct.unpack(">qi", slave.recv(12, socket.MSG_WAITALL))
                assert (offset, size) == (0, store.log_range()[1])
