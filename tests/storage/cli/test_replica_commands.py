"""A replica that is being fed, for every command: those that read show it, those that write are refused by name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.replicas import FedReplica
from rmq_store import Message, ReadOnlyError, Store, StoreConfig, SubscriptionGroup
from rmq_store.cli import commands
from rmq_store.reliable import Tables, open_engine

READ = [
    "topics STORE",
    "groups --store STORE",
    "lag --store STORE",
    "read T --store STORE",
    "tail T --store STORE",
    "trace STORE --uniq-key ID",
    "delayed STORE",
    "transactions list STORE",
    "offsets show g --store STORE",
    "offsets export g --store STORE",
    "dlq list --store STORE",
    "dlq show g --store STORE",
    "dlq export g --to FILE --store STORE",
    "retention status STORE",
    "retention run STORE --dry-run --manual",
    "metrics STORE",
    "doctor STORE",
    "consume T --group g --peek --store STORE",
    "offsets reset g --to-latest --dry-run --store STORE",
    "topicList STORE",
    "topicStatus -t T STORE",
    "consumerProgress STORE",
    "queryMsgByKey -t T -k K --store STORE",
    "queryMsgByUniqueKey -t T -i ID --store STORE",
    "printMsg -t T STORE",
    "consumeMessage -t T -g g -c 1 --store STORE",
    "brokerStatus STORE",
    "getBrokerConfig STORE",
    "exportMetadata STORE -f FILE",
    "deleteTopic -t T STORE --dry-run",
]

WRITE = [
    "send T --body x --store STORE",
    "consume T --group g --until-empty --store STORE",
    "offsets reset g --to-latest --yes --store STORE",
    "dlq redrive g --yes --store STORE",
    "dlq redrive g --dry-run --store STORE",
    "transactions resume --all --store STORE",
    "retention run STORE --manual --yes",
    "repair STORE --yes",
    "broker run --store STORE",
    "broker run --store STORE --listen 127.0.0.1:0",
    "sendMessage -t T -p x --store STORE",
    "updateTopic -t New STORE",
    "updateTopicPerm -t T -p 4 STORE",
    "deleteTopic -t T STORE --yes",
    "updateSubGroup -g new STORE",
    "deleteSubGroup -g g STORE --yes",
    "resetOffsetByTime -g g -t T -s now STORE --yes",
    "skipAccumulatedMessage -g g -t T STORE --yes",
    "cloneGroupOffset -s g -d other -t T STORE --yes",
    "updateBrokerConfig -k fileReservedTime -v 1 STORE",
    "cleanExpiredCQ STORE",
    "deleteExpiredCommitLog STORE --yes",
    "cleanUnusedTopic STORE --yes",
]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FedReplica]:
    """Topic T with four messages, a group that has two of them, and one of its dead letters. No test changes it."""
    with FedReplica(tmp_path_factory.mktemp("fed") / "replica", StoreConfig(1 << 18, 2000, 100, 400)) as made:
        made.add("T", 3)
        sent = made.store.send(Message("T", b"body", keys="K", queue_id=0))
        made.store.create_group(SubscriptionGroup("g"))
        made.store.commit_offsets("g", {("T", 0): 2})
        made.store.create_topic("%DLQ%g", 1)
        made.store.send(Message("%DLQ%g", b"dead"))
        made.store.flush()
        made.message_id = sent.msg_id
        yield made


def rmq(replica: FedReplica, line: str, made: Path | None = None) -> Result:
    words = line.replace("STORE", str(replica.root)).replace("ID", replica.message_id).replace("FILE", str(made))
    return CliRunner().invoke(commands, shlex.split(words))


@pytest.mark.parametrize("line", READ)
def test_a_command_that_reads_shows_a_replica(
    replica: FedReplica, line: str, tree_hash: Callable[[Path], str], tmp_path: Path
) -> None:
    before = tree_hash(replica.root)
    result = rmq(replica, line, tmp_path / "file.parquet")
    # doctor: 1 stands for findings about this machine
    assert result.exit_code in ((0, 1) if line.startswith("doctor") else (0,)), result.output
    assert "replica of broker" not in result.stderr
    assert tree_hash(replica.root) == before


@pytest.mark.parametrize("line", WRITE)
def test_a_command_that_writes_is_refused_and_changes_nothing(
    replica: FedReplica, line: str, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(replica.root)
    result = rmq(replica, line)
    assert result.exit_code != 0, result.output
    assert "replica of broker 'broker-a'" in result.output + result.stderr, (result.output, result.exception)
    assert tree_hash(replica.root) == before


@pytest.mark.parametrize("more", ["", " --dry-run"])
def test_the_relay_of_an_outbox_is_refused_and_its_messages_stay(
    replica: FedReplica, more: str, tree_hash: Callable[[Path], str], tmp_path: Path
) -> None:
    engine, tables = open_engine(f"sqlite:///{tmp_path}/orders.db"), Tables()
    tables.metadata.create_all(engine)
    stub = {
        "message_id": "0" * 32, "topic": "T", "body": b"owed", "flag": 0, "properties": "[]", "sharding_key": None,
        "status": "unconfirmed", "pending_groups": 0, "created_ms": 1, "send_count": 0, "resend_ms": 1,
        "claim_until_ms": 0, "is_manual": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(tables.stub.insert(), [stub])
    before = tree_hash(replica.root)
    result = rmq(replica, f"resend run --once --database sqlite:///{tmp_path}/orders.db --store STORE{more}")
    assert result.exit_code != 0, result.output
    assert "replica of broker 'broker-a', fed by" in result.output + result.stderr
    assert tree_hash(replica.root) == before
    with engine.begin() as connection:
        assert connection.execute(tables.stub.select()).one().send_count == 0
    engine.dispose()


def test_doctor_says_that_it_is_a_replica(replica: FedReplica) -> None:
    assert "of broker broker-a of cluster DefaultCluster, fed by" in rmq(replica, "doctor STORE").output


def test_a_backup_of_a_replica_is_a_replica(replica: FedReplica, scratch: Path) -> None:
    """It is a copy of all files: a replica, too, that `rmq follow` may feed from there on."""
    result = rmq(replica, f"backup STORE {scratch / 'backup'}")
    assert result.exit_code == 0, result.output
    with Store.open(scratch / "backup", read_only=True) as store:
        assert store.replica is not None and store.replica.broker == "broker-a"
        assert store.queue_range("T", 0) == (0, 4)
    with pytest.raises(ReadOnlyError, match="replica of broker 'broker-a', no process feeds it now"):
        Store.open(scratch / "backup")
