"""Numbers of RocketMQ's versions on the wire, as MQVersion.java has them."""

from __future__ import annotations

from rmq_store.protocol import versions
from rmq_store.protocol.versions import version_name, version_number

KNOWN = {
    121: "121", 212: "V4_0_0_SNAPSHOT", 213: "V4_0_0", 232: "V4_1_0_SNAPSHOT", 407: "V4_9_7", 413: "V5_0_0",
    513: "V5_5_0",
}  # fmt: skip


def test_names_of_versions_are_those_of_java() -> None:
    assert {number: version_name(number) for number in KNOWN} == KNOWN


def test_numbers_of_versions_are_those_of_java() -> None:
    assert (version_number(4, 0, 0), version_number(4, 9, 7), version_number(5, 5, 0)) == (213, 407, 513)
    named = {name: value for name, value in vars(versions).items() if name.startswith("V") and name[1].isdigit()}
    assert named == {"V4_9_3": 399, "V4_9_4": 401, "V4_9_8": 409, "V5_0_0": 413, "V5_1_1": 435, "V5_4_0": 493}
    assert {version_name(value) for value in named.values()} == set(named)
