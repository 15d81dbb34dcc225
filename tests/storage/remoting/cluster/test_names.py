"""Namespaces as NamespaceUtil.java has them."""

from __future__ import annotations

import pytest

from rmq_store.remoting.cluster.names import is_in_namespace, with_namespace, without_namespace


@pytest.mark.parametrize(
    ("plain", "wire"),
    [
        ("Orders", "ns1%Orders"),
        ("%RETRY%cg", "%RETRY%ns1%cg"),
        ("%DLQ%cg", "%DLQ%ns1%cg"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("TOOLS_CONSUMER", "TOOLS_CONSUMER"),
    ],
)
def test_the_wire_has_the_namespace_and_users_do_not_see_it(plain: str, wire: str) -> None:
    assert with_namespace("ns1", plain) == wire
    assert with_namespace("ns1", wire) == wire
    assert without_namespace("ns1", wire) == plain
    assert with_namespace("", plain) == plain
    assert without_namespace("", wire) == wire


def test_names_of_other_namespaces_are_told_apart() -> None:
    assert is_in_namespace("ns1", "%RETRY%ns1%cg")
    assert not is_in_namespace("ns1", "ns2%Orders")
    assert not is_in_namespace("ns1", "Orders")
    assert is_in_namespace("", "ns2%Orders")
    assert without_namespace("ns1", "ns2%Orders") == "ns2%Orders"
