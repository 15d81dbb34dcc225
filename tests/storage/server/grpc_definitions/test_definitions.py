"""Our messages and those of the official client are the same on the wire, and both live in one process."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from google.protobuf import descriptor_pool

from rmq_store.server.grpc_definitions.definitions import PACKAGE, message_class, ms_of, new, timestamp_fields
from rmq_store.server.grpc_definitions.enums import ENUMS
from rmq_store.server.grpc_definitions.message_table import messages

definition_pb2 = pytest.importorskip("rocketmq.grpc_protocol.definition_pb2")
service_pb2 = pytest.importorskip("rocketmq.grpc_protocol.service_pb2")
NAMES = [name for name, _ in messages()]


def theirs(name: str) -> type:
    return getattr(definition_pb2, name, None) or getattr(service_pb2, name)


def test_nothing_is_registered_in_the_default_pool() -> None:
    known = descriptor_pool.Default().FindMessageTypeByName(f"{PACKAGE}.Settings")
    assert known is definition_pb2.Settings.DESCRIPTOR
    assert message_class("Settings").DESCRIPTOR is not known


@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_the_fields_of_the_official_client(name: str) -> None:
    def shape(descriptor: object) -> list[tuple[object, ...]]:
        return sorted(
            (
                field.number, field.name, field.type, field.is_repeated, field.has_presence,
                field.message_type and field.message_type.full_name, field.enum_type and field.enum_type.full_name,
                field.containing_oneof and field.containing_oneof.name,
            )
            for field in descriptor.fields  # type: ignore[attr-defined]
        )  # fmt: skip

    ours, known = shape(message_class(name).DESCRIPTOR), shape(theirs(name).DESCRIPTOR)  # type: ignore[attr-defined]
    assert {field[1] for field in set(ours) - set(known)} <= {"client_properties"}  # newer than the client
    assert {field[1] for field in set(known) - set(ours)} <= {"notify_unsubscribe_lite_command"}  # not served


@pytest.mark.parametrize("kind", ENUMS)
def test_an_enumeration_has_the_numbers_of_the_official_client(kind: type) -> None:
    known = getattr(definition_pb2, kind.__name__)
    assert {value.name: int(value) for value in kind}.items() <= dict(known.items()).items()  # type: ignore[attr-defined]


def test_a_message_of_each_side_is_read_by_the_other() -> None:
    message = new("Message", body=b"x", user_properties={"k": "v"})
    message.system_properties.tag = ""
    message.system_properties.delivery_timestamp.seconds = 7
    copy = definition_pb2.Message.FromString(message.SerializeToString())
    assert copy.user_properties == {"k": "v"} and copy.system_properties.HasField("tag")
    assert message_class("Message").FromString(copy.SerializeToString()) == message


@pytest.mark.parametrize("ms", [0, 1, 999, 1_700_000_000_123, -1])
def test_milliseconds_survive_a_timestamp(ms: int) -> None:
    message = new("SystemProperties", born_timestamp=timestamp_fields(ms))
    assert ms_of(message.born_timestamp) == ms
