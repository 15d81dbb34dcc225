from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host

addresses = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))


@given(addresses, st.integers(0, 65535))
def test_host_reads_back_from_its_text_and_from_its_bytes(address: bytes, port: int) -> None:
    host = Host(address, port)
    assert Host.parse(str(host)) == host
    assert Host.unpack(host.pack()) == host
    assert host.is_ipv6 == (len(address) == 16)


def test_host_in_bytes_has_a_port_of_four_bytes() -> None:
    assert Host.parse("10.108.115.217:10911").pack().hex() == "0a6c73d900002a9f"
    assert str(Host.parse("[fe80::1234]:10911")) == "[fe80::1234]:10911"


NO_HOSTS = """
    10.0.0.1 10.0.0.1: 10.0.0.1:65536 10.0.0.1:-1 10.0.0.1:+1 10.0.0.1:1_0 10.0.0.1:١ 10.0.0:1 localhost:1
    fe80::1:80 [10.0.0.1]:1 [fe80::1] [fe80::1:1
"""


@pytest.mark.parametrize("text", ["", "1.2.3.4\0:5", " 1.2.3.4:5", *NO_HOSTS.split()])
def test_text_that_is_no_address_and_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Host.parse(text)
