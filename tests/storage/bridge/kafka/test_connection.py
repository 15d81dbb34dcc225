"""Options of a connection: passed through by a checked list, secrets by reference and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from rmq_store import UsageError
from rmq_store.bridge.kafka.connection import OPTIONS, SECRETS, KafkaConnection

SECRET = "kept-out-of-everything"


def test_addresses_are_split_at_commas() -> None:
    connection = KafkaConnection(("kafka-1:9092, kafka-2:9092", "[::1]:9093"))
    assert connection.settings()["bootstrap_servers"] == ["kafka-1:9092", "kafka-2:9092", "[::1]:9093"]


@pytest.mark.parametrize(
    "address", ["", "kafka-1", "kafka-1:", ":9092", "kafka-1:0", "kafka-1:٣", "kafka-1:99999", "::1:9092"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="bootstrap servers"):
        KafkaConnection((address,))


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown option .*'sasl_mechanisms'; did you mean 'sasl_mechanism'"):
        KafkaConnection(("kafka:9092",), {"sasl_mechanisms": "PLAIN"})


@pytest.mark.parametrize("name", ["isolation_level", "auto_offset_reset", "enable_auto_commit", "group_id", "acks"])
def test_what_decides_how_a_mirror_works_is_no_option(name: str) -> None:
    with pytest.raises(UsageError, match="unknown option"):
        KafkaConnection(("kafka:9092",), {name: "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl_check_hostname", "yes"), ("request_timeout_ms", "0"), ("request_timeout_ms", "-5"),
        ("request_timeout_ms", True), ("request_timeout_ms", "1e3"), ("security_protocol", "TLS"),
        ("sasl_mechanism", "MD5"), ("ssl_cafile", ""), ("client_id", 5),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_form_is_refused_by_its_name(name: str, value: str | int | bool) -> None:
    with pytest.raises(UsageError, match=name):
        KafkaConnection(("kafka:9092",), {name: value})


def test_texts_of_a_command_line_become_what_the_client_takes() -> None:
    settings = KafkaConnection(
        ("kafka:9092",), {"ssl_check_hostname": "false", "request_timeout_ms": "1500", "client_id": "me"}
    ).settings()
    assert (settings["ssl_check_hostname"], settings["request_timeout_ms"], settings["client_id"]) == (
        False,
        1500,
        "me",
    )


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_is_no_reference_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        KafkaConnection(("kafka:9092",), {name: SECRET})
    assert name in str(refused.value) and SECRET not in str(refused.value)


def test_secrets_are_read_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    (tmp_path / "key").write_text(f"{SECRET}-2\nrest")
    connection = KafkaConnection(
        ("kafka:9092",),
        {"sasl_plain_password": "env:KAFKA_PASSWORD", "ssl_password": f"file:{tmp_path / 'key'}"},
    )
    settings = connection.settings()
    assert (settings["sasl_plain_password"], settings["ssl_password"]) == (SECRET, f"{SECRET}-2")
    assert SECRET not in repr(connection) + str(connection)


def test_a_token_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    connection = KafkaConnection(("kafka:9092",), {"sasl_oauth_token": f"file:{file}"})
    provider = connection.settings()["sasl_oauth_token_provider"]
    for token in ("first", "second"):
        file.write_text(token)
        assert provider.token() == token


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\xff\xfe"])
def test_a_secret_that_is_not_there_is_told_without_its_content(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    connection = KafkaConnection(("kafka:9092",), {"ssl_password": f"file:{tmp_path / 'key'}"})
    with pytest.raises(UsageError, match="ssl_password"):
        connection.settings()


def test_an_environment_variable_that_is_not_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(UsageError, match="'NO_SUCH' is not set"):
        KafkaConnection(("kafka:9092",), {"ssl_password": "env:NO_SUCH"}).settings()


def test_every_option_is_one_that_the_clients_know() -> None:
    ours = {"sasl_oauth_token"}
    for client in (KafkaConsumer, KafkaProducer):
        assert set(OPTIONS) - ours - set(client.DEFAULT_CONFIG) <= {"client_rack"}
    left_out = KafkaConnection(("kafka:9092",), {"client_rack": "a", "ssl_ciphers": "b"}).administration_settings()
    assert set(left_out) <= set(KafkaAdminClient.DEFAULT_CONFIG)
