"""A backup has no credentials of a RocketMQ broker, and names what it has left out (apache/rocketmq#9446)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated.administration import AdministeredCluster
from rmq_store import Message, Store, backup
from rmq_store.broker.backup.credential_files import credential_of, is_credential
from rmq_store.cli import commands
from rmq_store.verify import verify_store
from security.conftest import TINY, fill

pytestmark = pytest.mark.harness

SECRET = b"kept-out-of-every-copy"
# ACL 2.0 and its write-ahead log, settings with initAuthenticationUser, ACL 1.0 below a home that is the store.
CREDENTIALS = (
    "config/users/000012.sst", "config/users/000013.log", "config/users/CURRENT", "config/acls/000004.sst",
    "config/broker.properties", "config/broker.properties.bak", "config/plain_acl.yml", "conf/acl/team.yml",
    "conf/acl/nested/team.yaml", "conf/plain_acl.yml", "conf/plain_acl.yml.bak", "conf/tools.yml", "acl/team.yml",
    "plain_acl.yml",
)  # fmt: skip
NAMED = (
    "acl", "conf/acl", "conf/plain_acl.yml", "conf/plain_acl.yml.bak", "conf/tools.yml", "config/acls",
    "config/broker.properties", "config/broker.properties.bak", "config/plain_acl.yml", "config/users", "plain_acl.yml",
)  # fmt: skip
# Names that only resemble those: without them the copy would not be whole.
NEIGHBOURS = (
    "conf/logback.xml", "config/usersettings.json", "config/consumerFilter.json", "timerwheel", "unknown/users",
)  # fmt: skip
# Data of stores of other kinds, as topics that are named as those places.
DATA = (
    "rocksdbstore/users/000001.sst", "config/topics/000001.sst", "config/subscriptionGroups/acls", "compaction/acl/0/1",
    "consumequeue/users/0/1", "batchconsumequeue/acl/0/1", "consumequeue_ext/conf/acl/1",
)  # fmt: skip


def plant(root: Path) -> None:
    for name in CREDENTIALS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"password=" + SECRET)
    for name in NEIGHBOURS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"{}")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A store of this engine in which a broker has left its files."""
    fill(tmp_path / "ours")
    plant(tmp_path / "ours")
    return tmp_path / "ours"


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A store that a broker wrote last: it is copied file by file."""
    root = tmp_path / "brokers"
    fill(root)
    shutil.rmtree(root / "pyrmq")
    (root / "lock").write_bytes(b"lock")
    plant(root)
    return root


@pytest.fixture(params=["ours", "brokers"])
def store(request: pytest.FixtureRequest) -> Path:
    root: Path = request.getfixturevalue(request.param)
    return root


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def holders(root: Path) -> list[str]:
    """The files that have the secret."""
    return [name for name in sorted(files(root)) if SECRET in (root / name).read_bytes()]


def test_no_file_of_a_backup_has_credentials_and_all_others_are_there(store: Path, tmp_path: Path) -> None:
    report = backup(store, tmp_path / "copy")
    assert holders(tmp_path / "copy") == []
    assert report.left_out == NAMED
    assert set(NEIGHBOURS) <= files(tmp_path / "copy")
    # Nothing but the content of those places is missed: an empty directory would say that there were users.
    assert not (tmp_path / "copy" / "config" / "users").exists()
    assert verify_store(tmp_path / "copy").status == "clean"
    assert holders(store) == sorted(CREDENTIALS)


def test_credentials_are_copied_when_they_are_asked_for(store: Path, tmp_path: Path) -> None:
    report = backup(store, tmp_path / "copy", with_credentials=True)
    assert (holders(tmp_path / "copy"), report.left_out) == (sorted(CREDENTIALS), ())


def test_a_store_without_credentials_has_nothing_left_out(copy: Callable[[], Path], tmp_path: Path) -> None:
    assert backup(copy(), tmp_path / "copy").left_out == ()


def test_topics_that_are_named_as_places_of_credentials_are_copied(tmp_path: Path) -> None:
    topics = ("users", "acls", "acl", "conf")
    with Store.open(tmp_path / "store", create=True, config=TINY) as opened:
        for topic in topics:
            opened.send(Message(topic, b"x", queue_id=0))
    assert backup(tmp_path / "store", tmp_path / "first").left_out == ()
    shutil.rmtree(tmp_path / "first" / "pyrmq")
    (tmp_path / "first" / "lock").write_bytes(b"lock")
    assert backup(tmp_path / "first", tmp_path / "second").left_out == ()
    with Store.open(tmp_path / "second", read_only=True) as opened:
        assert [opened.queue_range(topic, 0).max_offset for topic in topics] == [1] * len(topics)


def test_a_link_in_the_place_of_credentials_is_not_followed(ours: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (ours / "config" / "users").rename(elsewhere)
    (ours / "config" / "users").symlink_to(elsewhere)
    assert "config/users" in backup(ours, tmp_path / "copy").left_out
    assert holders(tmp_path / "copy") == []


@pytest.mark.parametrize("name", CREDENTIALS)
def test_every_place_of_credentials_is_known(name: str) -> None:
    found = credential_of(Path(name))
    assert found is not None and is_credential(found) and str(found) in NAMED


@pytest.mark.parametrize("name", [*NEIGHBOURS, *DATA])
def test_nothing_else_is_taken_for_credentials(name: str) -> None:
    assert credential_of(Path(name)) is None


# -- commands ---------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, env={"RMQ_STORE": None}, prog_name="rmq")


def test_the_command_names_what_it_has_left_out(store: Path, tmp_path: Path) -> None:
    result = run("backup", str(store), str(tmp_path / "copy"))
    assert result.exit_code == 0, result.output
    names = ", ".join(NAMED)
    assert result.stderr == (
        f"rmq: left out, as they hold passwords or secret keys: {names} (see --with-credentials)\n"
    )
    told = json.loads(run("backup", str(store), str(tmp_path / "json"), "--json").stdout)
    assert told["left_out"] == list(NAMED)
    result = run("backup", str(store), str(tmp_path / "whole"), "--with-credentials")
    assert (result.stderr, holders(tmp_path / "whole")) == ("", sorted(CREDENTIALS))
    assert holders(tmp_path / "copy") == holders(tmp_path / "json") == []


def test_no_command_that_shows_or_exports_a_store_has_credentials(ours: Path, tmp_path: Path) -> None:
    """Each reads tables of its own by their names; repair copies only files that it changes."""
    out = tmp_path / "out"
    (ours / "config" / "topics.json").write_bytes(b"torn")
    place = ("--store", str(ours))
    shown = ""
    for line in (
        ("exportMetadata", "-f", str(out / "metadata"), *place),
        ("exportConfigs", "-f", str(out / "configs"), *place),
        ("getBrokerConfig", *place),
        ("dlq", "archive", "--to", str(out / "archive"), *place),
        ("doctor", *place),
        ("verify", *place),
        ("repair", str(ours), "--yes", "--queues", "--index", "--removed", str(out / "removed")),
    ):
        out.mkdir(exist_ok=True)
        result = run(*line)
        assert result.exit_code in (0, 1), (line, result.output)
        shown += result.output
    assert SECRET.decode() not in shown
    assert holders(out) == []
    assert files(out / "removed") and holders(ours) == sorted(CREDENTIALS)


def test_settings_of_a_broker_are_shown_without_its_credentials(tmp_path: Path) -> None:
    """A Java broker tells an administrator its passwords with its settings (26); a terminal or a file is no place."""
    told = json.dumps({"username": "root", "password": SECRET.decode()})
    with AdministeredCluster(brokers=1) as cluster:
        (administration,) = cluster.administration.values()
        for name in (
            "initAuthenticationUser", "innerClientAuthenticationCredentials", "objectStoreAccessKey",
            "objectStoreSecretKey", "metricsGrpcExporterHeader",
        ):  # fmt: skip
            administration.settings[name] = told
        administration.settings["aclEnable"] = "true"
        place = ("-n", cluster.name_server)
        shown = [
            run(*place, "getBrokerConfig").stdout,
            run(*place, "getBrokerConfig", "--json").stdout,
            run(*place, "exportConfigs", "-f", str(tmp_path / "out")).stdout,
            run(*place, "exportConfigs", "--json").stdout,
        ]
    assert "success" in shown[2] and "brokerName" in shown[3]
    assert "aclEnable" in shown[0] and f"{'initAuthenticationUser':50}=  ***" in shown[0]
    assert json.loads(shown[1])[0]["settings"]["objectStoreSecretKey"] == "***"
    assert SECRET.decode() not in "".join(shown) and holders(tmp_path) == []
