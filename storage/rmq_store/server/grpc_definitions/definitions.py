"""The messages of apache.rocketmq.v2 as classes of protobuf, in a descriptor pool of their own.

The official Python client registers the same names in protobuf's default pool. One process can have both: nothing here
is registered there.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from rmq_store.server.grpc_definitions.enums import ENUMS
from rmq_store.server.grpc_definitions.message_table import Field, messages

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"

_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "float": FieldDescriptorProto.TYPE_FLOAT,
}
_ENUM_NAMES: Final = frozenset(kind.__name__ for kind in ENUMS)
_GOOGLE_NAMES: Final = frozenset(("Timestamp", "Duration"))


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="apache/rocketmq/v2/served.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend((timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name))
    for kind in ENUMS:
        enum = file.enum_type.add(name=kind.__name__)
        for value in kind:
            enum.value.add(name=value.name, number=value)
    for name, fields in messages():
        _add_message(file, name, fields)
    return file


def _add_message(file: FileDescriptorProto, name: str, fields: list[Field]) -> None:
    message = file.message_type.add(name=name)
    oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof))
    for oneof in oneofs:
        message.oneof_decl.add(name=oneof)
    for field in fields:
        added = message.field.add(name=field.name, number=field.number)
        is_map = field.type_name == "map"
        many = field.is_repeated or is_map
        added.label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
        if is_map:
            added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, _add_map_entry(message, field.name)
        else:
            _set_type(added, field.type_name)
        if field.oneof is not None:
            added.oneof_index = oneofs.index(field.oneof)
        elif field.has_presence:
            # An optional field of proto3 is the only member of a oneof, which stands behind the real ones.
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _set_type(field: FieldDescriptorProto, type_name: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
        return
    is_enum = type_name in _ENUM_NAMES
    field.type = FieldDescriptorProto.TYPE_ENUM if is_enum else FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f".google.protobuf.{type_name}" if type_name in _GOOGLE_NAMES else f".{PACKAGE}.{type_name}"


def _add_map_entry(message: DescriptorProto, field_name: str) -> str:
    """The message of one entry of a map from text to text, as protoc makes it; its full name."""
    name = "".join(word.capitalize() for word in field_name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), start=1):
        entry.field.add(
            name=part, number=number, type=_SCALARS["string"], label=FieldDescriptorProto.LABEL_OPTIONAL
        )
    return f".{PACKAGE}.{message.name}.{name}"


def _classes() -> dict[str, Any]:
    pool = DescriptorPool()
    for google in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(google.DESCRIPTOR.serialized_pb)
    pool.Add(_file())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name, _ in messages()}


_CLASSES: Final = _classes()


def message_class(name: str) -> Any:
    """The class of a message, by its name without the package. KeyError: the table has no such message."""
    return _CLASSES[name]


def new(name: str, **fields: Any) -> Any:
    """A new message with these fields."""
    return _CLASSES[name](**fields)


def timestamp_fields(ms: int) -> dict[str, int]:
    """Milliseconds as the fields of a Timestamp or a Duration."""
    return {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}


def ms_of(value: Any) -> int:
    """The milliseconds of a Timestamp or a Duration, rounded down."""
    return int(value.seconds) * 1000 + int(value.nanos) // 1_000_000
