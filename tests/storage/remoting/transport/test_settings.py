"""Settings: spellings of addresses, references of secrets, and that nothing secret is kept or shown."""

from __future__ import annotations

import pickle  # noqa: TID251 - our own
from pathlib import Path

import pytest

from rmq_store.client import UsageError
from rmq_store.remoting.transport.settings import (
    Address,
    ClusterSettings,
    TlsSettings,
    is_address_server,
    parse_address,
    parse_address_map,
)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("10.0.0.3:10911", Address("10.0.0.3", 10911), "10.0.0.3:10911"),
        (" ns1:9876 ", Address("ns1", 9876), "ns1:9876"),
        ("[::1]:10911", Address("::1", 10911), "[::1]:10911"),
        ("::1:10911", Address("::1", 10911), "[::1]:10911"),
        ("broker-a.my_net.example:1", Address("broker-a.my_net.example", 1), "broker-a.my_net.example:1"),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address, shown: str) -> None:
    assert parse_address(text) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    "text",
    ["", "host", ":10911", "host:", "host:0", "host:65536", "host:-1", "host:1a", "host:١", "a b:1", "user@host:1",
     "http://host:80/", "host/path:1", "h" * 256 + ":1", "höst:1", "host:000001"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address; it has the form host:port"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rmq://ns1:9876;ns2:9876", ("ns1:9876", "ns2:9876")),
        ("ns1:9876;ns2:9876", ("ns1:9876", "ns2:9876")),
        (" ns1:9876, ns2:9876;ns1:9876; ", ("ns1:9876", "ns2:9876")),
        ("http://address.example/rocketmq/nsaddr", ("http://address.example/rocketmq/nsaddr",)),
        ("http://address.example:8080/rocketmq/nsaddr", ("http://address.example:8080/rocketmq/nsaddr",)),
        ("https://address.example", ("https://address.example",)),
        ("http://10.0.0.3:9876", ("10.0.0.3:9876",)),
        ("rmq://http://ns1:9876;ns2:9876", ("ns1:9876", "ns2:9876")),
        ("http://ns1:9876, https://ns2:9876/;HTTP://ns1:9876", ("ns1:9876", "ns2:9876")),
        ("http://[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_a_cluster_has_one_spelling_everywhere(text: str, names: tuple[str, ...]) -> None:
    assert ClusterSettings.of_text(text, namespace="n") == ClusterSettings(name_servers=names, namespace="n")


def test_a_url_without_a_path_is_the_address_of_a_name_server_however_it_is_given() -> None:
    assert ClusterSettings(name_servers=("http://ns1:9876", "ns1:9876")).name_servers == ("ns1:9876",)
    assert not is_address_server("ns1:9876")
    assert is_address_server("HTTP://ns1:9876/list?a=b")
    assert ClusterSettings(name_servers=("http://ns1:9876?a=b",)).name_servers == ("http://ns1:9876?a=b",)
    with pytest.raises(UsageError, match="'user@ns1:9876' is no address"):
        ClusterSettings(name_servers=("http://user@ns1:9876",))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name_servers": ()}, "no name server"),
        ({"name_servers": ("ns1",)}, "'ns1' is no address"),
        ({"name_servers": ("http://a/b", "ns1:1")}, "the URL of an address server stands alone"),
        ({"address_map": {"a": "b:1"}}, "'a' is no address"),
        ({"address_map": {"a:1": "b"}}, "'b' is no address"),
        ({"access_key": "env:AK"}, "belong together"),
        ({"secret_key": "file:/k"}, "belong together"),
        ({"security_token": "env:T"}, "a security token without an access key"),
        ({"timeout_ms": 0}, r"timeout_ms is 0; it must be in \[1, 3600000\]"),
        ({"connect_timeout_ms": 3_600_001}, "connect_timeout_ms is 3600001"),
        ({"access_key": "env:", "secret_key": "env:S"}, "access_key is a reference"),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ClusterSettings(**{"name_servers": ("ns1:9876",), **options})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a key without a certificate"):
        TlsSettings(key_file="key.pem")


@pytest.mark.parametrize("name", ["access_key", "secret_key", "security_token"])
def test_a_secret_instead_of_its_reference_is_refused_without_showing_it(name: str) -> None:
    keys = {"access_key": "env:AK", "secret_key": "env:SK", name: "hunter2"}
    with pytest.raises(UsageError) as caught:
        ClusterSettings(name_servers=("ns1:9876",), **keys)  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} is a reference, env:NAME or file:PATH, and never the secret itself"


def test_an_address_map_is_pairs() -> None:
    text = "10.0.0.3:10911=localhost:10911, 10.0.0.4:10911=[::1]:10921;;"
    found = parse_address_map(text)
    assert found == {"10.0.0.3:10911": "localhost:10911", "10.0.0.4:10911": "[::1]:10921"}
    settings = ClusterSettings(name_servers=("ns1:9876",), address_map=found)
    assert settings.target_of("10.0.0.3:10911") == ("localhost", 10911)
    assert settings.target_of("10.0.0.5:10911") == ("10.0.0.5", 10911)
    assert parse_address_map("") == {}
    with pytest.raises(UsageError, match="'a:1' in an address map has no '='"):
        parse_address_map("a:1")
    with pytest.raises(UsageError, match="two targets for a:1"):
        parse_address_map("a:1=b:1,a:1=c:1")


def test_settings_pickle_compare_and_hash(tmp_path: Path) -> None:
    tls = TlsSettings(ca_file=str(tmp_path / "ca.pem"), server_name="broker")
    settings = ClusterSettings.of_text(
        "ns1:9876", access_key="env:AK", secret_key="file:/run/sk", tls=tls, address_map={"a:1": "b:1"}
    )
    copy = pickle.loads(pickle.dumps(settings))  # noqa: S301
    assert copy == settings and hash(copy) == hash(settings)
    assert copy != ClusterSettings.of_text("ns1:9876", access_key="env:AK", secret_key="file:/run/sk", tls=tls)
