"""Who may do what: patterns, the file of users, and the table of rights, without a server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_store.errors import UsageError
from rmq_store.protocol.wire.header_fields import mandatory_names
from rmq_store.server.access.acl_file import read_users
from rmq_store.server.access.rights import Patterns, User, parse_rights
from rmq_store.server.requests.request_needs import Field, Need, Resource, Right, StoredMessage
from rmq_store.server.requests.request_table import REQUESTS, Change, Receiver

SECRET = "kept-out-of-everything"


def user(topics: dict[str, str] | None = None, groups: dict[str, str] | None = None) -> User:
    patterns = [Patterns({name: parse_rights(text) for name, text in (one or {}).items()}) for one in (topics, groups)]
    return User("key", SECRET, *patterns)


def may(who: User, right: Right, resource: Resource, name: str) -> bool:
    return who.may(Need(right, resource, name))


def test_what_no_pattern_names_is_denied() -> None:
    nobody = user()
    assert not any(
        may(nobody, right, resource, name)
        for right in (Right.PUB, Right.SUB, Right.ADMIN)
        for resource in Resource
        for name in ("Orders", "")
    )


@pytest.mark.parametrize(
    ("name", "rights"),
    [("Orders", Right.PUB | Right.SUB), ("Orders-eu", Right.PUB), ("Orders-eu-no", Right.DENY), ("Bills", Right.SUB)],
)
def test_the_most_exact_pattern_decides_alone(name: str, rights: Right) -> None:
    patterns = {"*": "SUB", "Orders*": "PUB", "Orders": "PUB|SUB", "Orders-eu-no": "DENY"}
    who = user(patterns)
    found = [right for right in Right if may(who, right, Resource.TOPIC, name)]
    assert found == list(rights)


def test_rights_for_topics_are_none_for_groups_and_the_broker() -> None:
    who = user({"*": "PUB|SUB|ADMIN"})
    assert not may(who, Right.SUB, Resource.GROUP, "Orders")
    assert not may(user({"*": "ADMIN"}, {"*": "ADMIN"}), Right.ADMIN, Resource.BROKER, "")


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing", "%RETRY%billing+Orders"])
def test_topics_of_retries_and_dead_letters_belong_to_the_group(topic: str) -> None:
    member, stranger = user(groups={"billing": "SUB"}), user({"*": "PUB|SUB|ADMIN"}, {"billing": "PUB"})
    for right in (Right.PUB, Right.SUB):
        assert may(member, right, Resource.TOPIC, topic)
        assert not may(stranger, right, Resource.TOPIC, topic)
    assert not may(member, Right.ADMIN, Resource.TOPIC, topic)


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer", "TBW102"],
)
def test_a_topic_that_holds_messages_of_others_is_opened_by_its_name_only(topic: str) -> None:
    """Otherwise who has `*` would read there what a DENY keeps from it."""
    wide = user({"*": "PUB|SUB|ADMIN", f"{topic[:-1]}*": "PUB|SUB|ADMIN"})
    assert not any(may(wide, right, Resource.TOPIC, topic) for right in (Right.PUB, Right.SUB, Right.ADMIN))
    assert may(user({topic: "SUB"}), Right.SUB, Resource.TOPIC, topic)
    assert may(wide, Right.PUB, Resource.TOPIC, "RMQ_SYS_TRACE_TOPIC")


@pytest.mark.parametrize(
    "group",
    [
        "CLIENT_INNER_PRODUCER", "_INNER_TRACE_PRODUCER", "_INNER_TRACE_PRODUCER-pg-PRODUCE",
        "_INNER_TRACE_PRODUCER-ns%c-g-CONSUME-12",
    ],
)  # fmt: skip
def test_every_client_may_have_the_producers_that_java_makes_for_it(group: str) -> None:
    assert may(user(), Right.PUB, Resource.GROUP, group)
    assert not may(user(), Right.SUB, Resource.GROUP, group)


@pytest.mark.parametrize(
    "group",
    [
        "CLIENT_INNER_PRODUCER2", "CLIENT_INNER_PRODUCER\n", "_INNER_TRACE_PRODUCERS", "_INNER_TRACE_PRODUCER-pg",
        "_INNER_TRACE_PRODUCER-pg-PRODUCE-x", "_INNER_TRACE_PRODUCER--PRODUCE",
    ],
)  # fmt: skip
def test_a_group_that_only_begins_like_one_of_java_needs_its_right(group: str) -> None:
    assert not may(user(), Right.PUB, Resource.GROUP, group)


@pytest.mark.parametrize("pattern", ["", "Or*ders", "**"])
def test_a_pattern_has_its_star_at_the_end(pattern: str) -> None:
    with pytest.raises(UsageError, match="is no pattern"):
        Patterns({pattern: Right.SUB})


# -- the file -----------------------------------------------------------------------------------------------------


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_file_of_users(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    (scratch / "secret").write_text(f"{SECRET}\n")
    text = f"""
        [[user]]
        access_key = "orders"
        secret_key = "env:ORDERS_SECRET"
        topics = {{ "Orders*" = "PUB" }}
        groups = {{ "billing" = "SUB|ADMIN" }}
        [[user]]
        access_key = "operator"
        secret_key = "file:{scratch}/secret"
        admin = true
        """
    users = read_users(written(scratch / "acl.toml", text, 0o644))
    assert list(users) == ["orders", "operator"]
    assert {one.secret_key for one in users.values()} == {SECRET}
    assert may(users["orders"], Right.ADMIN, Resource.GROUP, "billing")
    assert may(users["operator"], Right.ADMIN, Resource.BROKER, "")
    assert SECRET not in repr(users)


def test_a_secret_stands_in_a_private_file_only(scratch: Path) -> None:
    text = f'[[user]]\naccess_key = "orders"\nsecret_key = "{SECRET}"\n'
    assert read_users(written(scratch / "acl.toml", text))["orders"].secret_key == SECRET
    for mode in (0o640, 0o604, 0o644):
        with pytest.raises(UsageError, match="chmod 600") as refused:
            read_users(written(scratch / "acl.toml", text, mode))
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(scratch: Path, mode: int) -> None:
    with pytest.raises(UsageError, match="chmod go-w"):
        read_users(written(scratch / "acl.toml", '[[user]]\naccess_key = "a"\nsecret_key = "1234567"\n', mode))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at least one"),
        ("[[user]\n", "no TOML"),
        ("[[users]]\n", "nothing else"),
        ('[[user]]\nsecret_key = "1234567"', "user 1: no access_key"),
        ('[[user]]\naccess_key = "a"', "shorter than 7"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "123456"', "shorter than 7"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "env:RMQ_NO_SUCH_VARIABLE"', "nothing at env:RMQ_NO_SUCH_VARIABLE"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\nadmin = "yes"', "another type"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\ntopic = {}', "'topic' is no key"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\ntopics = {A = "READ"}', "'READ' is no right"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\ntopics = {A = 1}', "are a text"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\ntopics = {"*A" = "SUB"}', "no pattern"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\nadmin = true\ntopics = {}', "leave out"),
        ('[[user]]\naccess_key = "a"\nsecret_key = "1234567"\n' * 2, "user 2: its access key"),
    ],
)
def test_a_wrong_file_is_refused_and_shows_no_secret(scratch: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        read_users(written(scratch / "acl.toml", text))
    assert "acl.toml" in str(refused.value) and "1234567" not in str(refused.value)


def test_something_else_in_the_place_of_the_file_is_refused_at_once(scratch: Path) -> None:
    os.mkfifo(scratch / "fifo", 0o600)
    for path in (scratch / "fifo", scratch):
        with pytest.raises(UsageError, match=r"no regular file|cannot be read"):
            read_users(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_users(scratch / "missing")


# -- the table ----------------------------------------------------------------------------------------------------


def test_every_field_of_the_table_is_one_of_its_request() -> None:
    for code, request in REQUESTS.items():
        names = mandatory_names(request.request_header)
        asked = [need.name for need in request.rights.needs if isinstance(need, Field | StoredMessage)]
        assert set(asked) <= set(names), code


def test_requests_that_are_never_carried_out() -> None:
    assert {int(code) for code, row in REQUESTS.items() if row.rights.change is Change.NEVER} == {25, 318, 1009}


def test_changes_for_administrators() -> None:
    changes = {int(code) for code, row in REQUESTS.items() if row.rights.change is Change.ALWAYS}
    assert changes >= {207, 215, 216, 220, 222, 401}
    assert {int(code) for code, row in REQUESTS.items() if row.rights.change is Change.EXISTING} == {17, 200}


def test_what_a_member_or_producer_asks_is_no_change() -> None:
    everyday = {10, 310, 320, 11, 361, 14, 15, 34, 35, 36, 37, 38, 41, 42, 46, 105, 200050, 200051, 200053}
    assert all(REQUESTS[code].rights.change is Change.NO for code in everyday)


def test_a_request_about_a_topic_or_a_group_needs_a_right_for_it() -> None:
    """Only figures and names are for every user: no field of a topic or group is forgotten by mistake."""
    free = {int(code) for code, row in REQUESTS.items() if not row.rights.needs}
    assert free == {21, 28, 101, 105, 106, 201, 206, 219, 224, 304, 305, 315, 351, 352}
    assert not any(request.receiver is Receiver.CLIENT for code, request in REQUESTS.items() if int(code) in free)
